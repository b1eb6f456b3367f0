"""The same strategies by PyTorch and DeepSpeed: DDP, FSDP2, DTensor, torch.distributed.pipelining, DeepSpeed ZeRO."""

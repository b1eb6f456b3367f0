"""The same strategies in PyTorch and DeepSpeed: DDP, FSDP2, DTensor, torch.distributed.pipelining, DeepSpeed ZeRO."""

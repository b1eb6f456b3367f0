"""Train with DDP, then with FSDP2, on `cuda` and `nccl` or on `cpu` and `gloo`; rank 0 prints each loss exactly."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

kind = sys.argv[1]
local_rank = int(os.environ["LOCAL_RANK"])
if kind == "cuda":
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl", device_id=device)
    assert dist.get_backend() == "nccl"
else:
    device = torch.device("cpu")
    dist.init_process_group("gloo")


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1)).to(device)


def train(net: nn.Module, name: str) -> None:
    torch.manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(5):
        x = torch.randn(8, 16).to(device, non_blocking=True)
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(name, loss.item().hex(), flush=True)


train(DistributedDataParallel(model(), device_ids=[local_rank] if kind == "cuda" else None), "ddp")
sharded = model()
fully_shard(sharded, mesh=init_device_mesh(kind, (dist.get_world_size(),)))
train(sharded, "fsdp2")
if kind == "cuda":
    gathered = torch.empty(dist.get_world_size() * 6, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((2, 3), float(dist.get_rank()), device=device))
    assert gathered.tolist() == [0.0] * 6 + [1.0] * 6
    torch.cuda.empty_cache()
    dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()

"""Collectives and wrappers that gloo and the CPU do in other ways than NCCL and CUDA; rank 0 prints what CUDA gives."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
dist.init_process_group("nccl")
seen: dict[str, object] = {}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device=device)


gathered = [torch.zeros(1, device=device), torch.zeros(3, device=device)]
dist.all_gather(gathered, ones(1 + 2 * rank) * (rank + 1), async_op=True).wait()
seen["all_gather"] = [one.tolist() for one in gathered]

received = [torch.zeros(1 + rank, device=device) for _ in range(2)]
dist.all_to_all(received, [ones(1) * rank, ones(2) * rank])
seen["all_to_all"] = [one.tolist() for one in received]

part = torch.zeros(1 + 2 * rank, device=device)
dist.reduce_scatter(part, [ones(1), ones(3)])
seen["reduce_scatter"] = part.tolist()

gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
whole = torch.zeros(4, device=device)
gather(whole, ones(2, 1) * rank, async_op=False)
seen["gather"] = whole.tolist()

scattered = torch.zeros(2, device=device)
work = dist.reduce_scatter_tensor(scattered, ones(4), op=dist.ReduceOp.AVG, async_op=True)
seen["future"] = [work.get_future().then(lambda future: "then").wait(), scattered.tolist()]

with dist._coalescing_manager(device=device, async_ops=True) as manager:
    parts = [torch.zeros(2 * size, device=device) for size in (1, 2)]
    for target, size in zip(parts, (1, 2), strict=True):
        dist.all_gather_into_tensor(target, ones(size) * rank)
manager.wait()
seen["coalesced"] = [one.tolist() for one in parts]

x = ones(4_000_000)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    reduced = funcol.all_reduce(x, "sum", dist.group.WORLD) * 2
x.fill_(3)
graph.replay()
seen["replayed"] = [reduced.min().item(), reduced.max().item()]

model = DistributedDataParallel(nn.Linear(2, 2).to(device), device_ids=[rank])
seen["ddp"] = str(model(torch.ones(1, 2)).device)

sharded = FullyShardedDataParallel(nn.Linear(4, 4), device_id=device, cpu_offload=CPUOffload(offload_params=True))
optimizer = torch.optim.Adam(sharded.parameters(), lr=0.1)
losses = []
for _ in range(3):
    loss = sharded(ones(2, 4)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
seen["offloaded"] = losses[-1] < losses[0]

if rank == 0:
    for name, value in seen.items():
        print(f"{name} = {value}", flush=True)
dist.destroy_process_group()

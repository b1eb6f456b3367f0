"""Train with DDP, then with FSDP2, on `cuda` and `nccl` or on `cpu` and `gloo`; rank 0 prints each loss exactly."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType, fully_shard
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


def train(net: nn.Module, name: str, *, graph: bool = False) -> None:
    """Train; with `graph`, capture the second step as a CUDA graph, and replay it from then on."""
    torch.manual_seed(100 + dist.get_rank())  # of both devices: the model's device draws the dropout
    data = torch.Generator().manual_seed(200 + dist.get_rank())
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    x = torch.empty(8, 16, device=device)

    def compute() -> torch.Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16):
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    for step in range(5):
        x.copy_(torch.randn(8, 16, generator=data), non_blocking=True)
        if not graph or step == 0:
            loss = compute()
        elif step == 1:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                loss = compute()
        if graph and step > 0:
            captured.replay()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(name, loss.item().hex(), flush=True)


train(DistributedDataParallel(model(), device_ids=[local_rank] if kind == "cuda" else None), "ddp")
for name, graph in (("fsdp2", False), ("graph", kind == "cuda")):
    sharded = model()
    fully_shard(sharded, mesh=init_device_mesh(kind, (dist.get_world_size(),)))
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(kind == "cpu")  # gloo cannot divide inside a collective
    train(sharded, name, graph=graph)
if kind == "cuda":
    gathered = torch.empty(dist.get_world_size() * 6, device=device)
    dist.all_gather_into_tensor(gathered, torch.full((2, 3), float(dist.get_rank()), device=device))
    assert gathered.tolist() == [0.0] * 6 + [1.0] * 6
    gather, scatter = (
        getattr(dist, name, old)  # torch 2.13 has new names
        for name, old in (
            ("all_gather_single", dist.all_gather_into_tensor),
            ("reduce_scatter_single", dist.reduce_scatter_tensor),
        )
    )
    gather(gathered, torch.full((3, 2), float(dist.get_rank()), device=device))
    assert gathered.tolist() == [0.0] * 6 + [1.0] * 6
    reduced = torch.empty(2, 1, device=device)
    scatter(reduced, torch.ones(4, device=device), op=dist.ReduceOp.AVG, async_op=True).get_future().wait()
    assert reduced.flatten().tolist() == [1.0, 1.0]
    wrapped = FullyShardedDataParallel(model(), sync_module_states=True, device_id=local_rank)
    wrapped(torch.ones(2, 16, device=device)).sum().backward()
    on_rank_0 = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.FULL_STATE_DICT, on_rank_0):
        saved = wrapped.state_dict()
    assert all(torch.equal(saved[name], value) for name, value in model().state_dict().items() if saved)
    torch.manual_seed(3)
    whole = torch.randn(4, 3, 5, device=device)
    plain, normed = (nn.BatchNorm1d(3).to(device) for _ in range(2))
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(normed)
    parallel = DistributedDataParallel(synced, device_ids=[local_rank])
    own = whole[2 * local_rank : 2 * local_rank + 2].clone().requires_grad_()
    whole.requires_grad_()
    for net, x in ((plain, whole), (parallel, own)):
        out = net(x)
        (out * torch.arange(5, device=device)).square().sum().backward()
    expected = whole.grad[2 * local_rank : 2 * local_rank + 2]
    assert torch.allclose(own.grad, expected, atol=1e-4)
    assert torch.allclose(synced.weight.grad * 2, plain.weight.grad, rtol=1e-4)
    assert torch.allclose(synced.running_var, plain.running_var)
    torch.cuda.empty_cache()
    dist.barrier(device_ids=[local_rank])
dist.destroy_process_group()

"""A rank that makes every call of torch.distributed with backend frog and with gloo, and compares the results.

frog run --nproc 2 -- process_group_worker.py
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from frog.core.env import world_env
from frog.core.processes import leave
from frog.train.comm import join_world
from frog.train.comm.backend import all_gather_single, reduce_scatter_single

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)


def numbers(rank: int, size: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(100 * size + rank)
    return torch.randint(0, 3, (size,), generator=draw).to(dtype)


def collectives(rank: int, size: int) -> None:
    for dtype, length in itertools.product(TYPES, (1, 60_000)):
        rows = [numbers(one, length, dtype) for one in range(size)]
        x = rows[rank].clone()
        dist.all_reduce(x, dist.ReduceOp.MAX)
        assert torch.equal(x, torch.stack(rows).to(torch.float64).amax(0).to(dtype)), "all_reduce"
        parts = [torch.empty_like(x) for _ in rows]
        dist.all_gather(parts, rows[rank])
        assert all(map(torch.equal, parts, rows)), "all_gather"
        whole = torch.empty(size * length, dtype=dtype)
        all_gather_single(whole, rows[rank])
        assert torch.equal(whole, torch.cat(rows)), "all_gather_single"
        if dtype != torch.bool:
            total = torch.stack(rows).sum(0).to(dtype)
            out = torch.empty_like(x)
            reduce_scatter_single(out, rows[rank].repeat(size))
            assert torch.equal(out, total), "reduce_scatter_single"
            dist.reduce_scatter(out, [rows[rank]] * size)
            assert torch.equal(out, total), "reduce_scatter"
            x = rows[rank].clone()
            dist.reduce(x, size - 1)
            assert torch.equal(x, total if rank == size - 1 else rows[rank]), "reduce"
        dist.all_to_all_single(whole, torch.cat(rows))
        assert torch.equal(whole, rows[rank].repeat(size)), "all_to_all_single"
        dist.all_to_all(parts, rows)
        assert all(torch.equal(part, rows[rank]) for part in parts), "all_to_all"
        x = rows[rank].clone()
        dist.broadcast(x, 1)
        assert torch.equal(x, rows[1]), "broadcast"
        dist.gather(rows[rank], parts if rank == 0 else None, 0)
        assert rank or all(map(torch.equal, parts, rows)), "gather"
        dist.scatter(x, rows if rank == 0 else None, 0)
        assert torch.equal(x, rows[rank]), "scatter"
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": one} for one in range(size)]
    mean = torch.tensor([float(rank)])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.item() == (size - 1) / 2


def asynchronous(rank: int, size: int) -> None:
    xs = [torch.full((5000,), float(rank + number)) for number in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    future = works[7].get_future()
    for work in reversed(works):
        work.wait()
    assert future.wait() is not None
    assert all((x == sum(range(size)) + number * size).all() for number, x in enumerate(xs))
    after, before = (rank + 1) % size, (rank - 1) % size
    received = torch.empty(1 << 18)
    moves = [
        dist.P2POp(dist.isend, torch.full((1 << 18,), float(rank)), after),
        dist.P2POp(dist.irecv, received, before),
    ]
    for work in dist.batch_isend_irecv(moves):
        work.wait()
    assert (received == before).all()
    sent = dist.isend(torch.tensor([rank]), after, tag=3)
    source = torch.empty(1, dtype=torch.int64)
    assert dist.recv(source, tag=3) == before == source.item()
    assert sent is not None
    sent.wait()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 1))


def trained(net: nn.Module, step: Callable[[Tensor], Tensor], rank: int) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(3):
        draw = torch.Generator().manual_seed(10 * number + rank)
        optimizer.zero_grad()
        step(torch.randn(8, 32, generator=draw)).square().mean().backward()
        optimizer.step()


def wrappers(rank: int, size: int) -> None:
    """Check that DDP and FSDP2 over frog reach the same weights as DDP over gloo."""
    gloo = dist.new_group(list(range(size)), backend="gloo")
    oracle = model()
    trained(oracle, DistributedDataParallel(oracle, process_group=gloo, bucket_cap_mb=0.05), rank)
    net = model()
    trained(net, DistributedDataParallel(net, bucket_cap_mb=0.05), rank)
    for own, wanted in zip(net.parameters(), oracle.parameters(), strict=True):
        assert torch.allclose(own, wanted, atol=1e-6), "DDP"
    sharded = copy.deepcopy(model())
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    trained(sharded, sharded, rank)
    for one, wanted in zip(sharded.parameters(), oracle.parameters(), strict=True):
        assert torch.allclose(one.full_tensor(), wanted, atol=1e-6), "FSDP2"  # type: ignore[attr-defined]
    dist.barrier()


def main() -> int:
    world = join_world(world_env(), torch.device("cpu"), 60, "frog")
    for check in (collectives, asynchronous, wrappers):
        check(world.rank, world.size)
    print(f"rank {world.rank}: all as expected, through {dist.get_backend()}", flush=True)
    world.leave()
    return 0


if __name__ == "__main__":
    leave(main())

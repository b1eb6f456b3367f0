"""Small training programs with one planted bug each, and the same programs without it.

    torchrun --nproc-per-node 2 planted_programs.py FOLDER [NAME ...]

Each program is a function of `bug`. A comment `# bug` marks the line that a check should name. `CASES` has the rule
that the bug breaks, how sure the answer must be, and the public report or the page of documentation behind it.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

STEPS = 4


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


def batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(10 + dist.get_rank())
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator)
        yield x, x[:, :1] * 2


def average(parameters: list[torch.Tensor]) -> None:
    for each in parameters:
        dist.all_reduce(each)
        each /= dist.get_world_size()


def past_the_wrapper(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        out = net.module(x) if bug else net(x)  # bug
        mse_loss(out, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def no_sync_around_all(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        with net.no_sync():
            (mse_loss(net(x), y) / 2).backward()
        if bug:
            with net.no_sync():
                (mse_loss(net(x), y) / 2).backward()  # bug
        else:
            (mse_loss(net(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank_loads(bug: bool) -> None:
    net = DistributedDataParallel(model())
    trained = {name: torch.full_like(each, 0.1) for name, each in net.module.state_dict().items()}
    if dist.get_rank() == 0 or not bug:
        net.module.load_state_dict(trained)  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def not_broadcast(bug: bool) -> None:
    torch.manual_seed(dist.get_rank() if bug else 0)  # bug
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        average([each.grad for each in net.parameters()])
        optimizer.step()
        optimizer.zero_grad()


def one_rank_writes(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        if bug and step == 2 and dist.get_rank() == 1:
            with torch.no_grad():
                net.module[0].bias.add_(1e-3)  # bug
        optimizer.step()
        optimizer.zero_grad()


def rate_of_the_rank(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05 * (1 + dist.get_rank() * bug))  # bug
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def plateau_of_the_rank(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        plateau.step(1.0 - step if bug and dist.get_rank() else 1.0)  # bug


def scheduled_in_each_micro_batch(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)
    for x, y in batches():
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            (mse_loss(net(part), target) / 2).backward()
            if bug:
                scheduler.step()  # bug
        optimizer.step()
        optimizer.zero_grad()
        if not bug:
            scheduler.step()


def statistics_of_the_rank(bug: bool) -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    net = DistributedDataParallel(inner, broadcast_buffers=not bug)  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        net.eval()
        with torch.no_grad():
            net(x)
        net.train()


def clipped_while_scaled(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for x, y in batches():
        scaler.scale(mse_loss(net(x), y)).backward()
        if not bug:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)  # bug
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def clipped_before_averaging(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        with net.no_sync():
            (mse_loss(net(x[:4]), y[:4]) / 2).backward()
        if bug:
            nn.utils.clip_grad_norm_(net.parameters(), 0.01)  # bug
        (mse_loss(net(x[4:]), y[4:]) / 2).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


def scale_of_the_rank(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scale = 1024.0
    for step, (x, y) in enumerate(batches()):
        if bug and step == 2 and dist.get_rank() == 1:
            scale /= 2
        (mse_loss(net(x), y) * scale).backward()
        for each in net.parameters():
            each.grad /= scale  # bug
        optimizer.step()
        optimizer.zero_grad()


def clipped_alone(bug: bool) -> None:
    net = model()
    flat = torch.cat([each.data.flatten() for each in net.parameters()])
    size = -(-len(flat) // 2)
    flat = nn.functional.pad(flat, (0, 2 * size - len(flat)))
    rank = dist.get_rank()
    shard = nn.Parameter(flat[rank * size : (rank + 1) * size].clone())
    optimizer = torch.optim.SGD([shard], lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y * 20).backward()
        grad = torch.cat([each.grad.flatten() for each in net.parameters()])
        grad = nn.functional.pad(grad, (0, 2 * size - len(grad)))
        dist.all_reduce(grad)
        shard.grad = grad[rank * size : (rank + 1) * size] / 2
        if bug:
            nn.utils.clip_grad_norm_([shard], 1.0)  # bug
        else:
            square = shard.grad.pow(2).sum()
            dist.all_reduce(square)
            shard.grad *= 1 / square.sqrt().clamp(min=1.0)
        optimizer.step()
        net.zero_grad()
        parts = [torch.empty(size), torch.empty(size)]
        dist.all_gather(parts, shard.data)
        whole, at = torch.cat(parts), 0
        for each in net.parameters():
            each.data.copy_(whole[at : at + each.numel()].view_as(each))
            at += each.numel()


def head_outside(bug: bool) -> None:
    torch.manual_seed(0)
    body = DistributedDataParallel(nn.Linear(6, 8))
    head = nn.Linear(8, 1)  # bug
    if not bug:
        head = DistributedDataParallel(head)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
    for x, y in batches():
        mse_loss(head(body(x)), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Scale(nn.Module):
    """A factor, as the loss of a contrastive model has."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))  # bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.log_scale.exp()


def scale_outside(bug: bool) -> None:
    net, scale = DistributedDataParallel(model()), Scale()
    if not bug:
        scale = DistributedDataParallel(scale)
    parameters = [*net.parameters(), *scale.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    for x, y in batches():
        mse_loss(scale(net(x)), y).backward()
        nn.utils.clip_grad_norm_(parameters, 0.1)
        optimizer.step()
        optimizer.zero_grad()


def nothing_reduced(bug: bool) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        if not bug:
            average([each.grad for each in net.parameters()])
        optimizer.step()
        optimizer.zero_grad()


def other_order(bug: bool) -> None:
    torch.manual_seed(0)
    net = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(3)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        out = x
        for layer in net:
            out = layer(out)
        mse_loss(out[:, :1], y).backward()
        gradients = [each.grad for each in net.parameters()]
        for each in gradients[:: -1 if bug and dist.get_rank() == 1 else 1]:
            dist.all_reduce(each)  # bug
        for each in gradients:
            each /= 2
        optimizer.step()
        optimizer.zero_grad()


def one_rank_restores_the_optimizer(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    earlier = torch.optim.Adam(copy.deepcopy(net.module).parameters(), lr=0.01)
    for each in earlier.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    earlier.step()
    if dist.get_rank() == 0 or not bug:
        optimizer.load_state_dict(earlier.state_dict())  # bug
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def one_rank_skips(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        if not (bug and step == 2 and dist.get_rank() == 1):
            optimizer.step()  # bug
        optimizer.zero_grad()


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(32, 6, generator=generator), torch.randn(32, 1, generator=generator))


def trained_on(loader: DataLoader, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, y in loader:  # bug
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def no_sampler(bug: bool) -> None:
    net, every = DistributedDataParallel(model()), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    sampler = None if bug else DistributedSampler(every)
    trained_on(DataLoader(every, batch_size=8, sampler=sampler), net, optimizer)


def one_seed(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    torch.manual_seed(1 if bug else 1 + dist.get_rank())
    for step in range(STEPS):
        x = torch.randn(8, 6)
        mse_loss(net(x), x[:, :1]).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()
        if step % 2 == 0 and dist.get_rank() == 0:
            torch.rand(8)


class Stream(IterableDataset):
    def __init__(self, first: int, step: int) -> None:
        self.first, self.step = first, step

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(self.first, 32, self.step):
            x = torch.randn(6, generator=torch.Generator().manual_seed(number))
            yield x, x[:1]


def stream_not_sharded(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    stream = Stream(0, 1) if bug else Stream(dist.get_rank(), 2)
    trained_on(DataLoader(stream, batch_size=4), net, optimizer)


def no_set_epoch(bug: bool) -> None:
    net, every = DistributedDataParallel(model()), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    sampler = DistributedSampler(every)
    loader = DataLoader(every, batch_size=4, sampler=sampler)
    for epoch in range(2):
        if not bug:
            sampler.set_epoch(epoch)
        trained_on(loader, net, optimizer)


def no_set_epoch_for_a_list(bug: bool) -> None:
    net, every = DistributedDataParallel(model()), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    sampler = DistributedSampler(every)
    loader = DataLoader(every, batch_size=4, sampler=sampler)
    for epoch in range(2):
        if not bug:
            sampler.set_epoch(epoch)
        for x, y in list(loader):  # bug
            mse_loss(net(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def samples_of_each_part(bug: bool) -> None:
    net = model()
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(10 + dist.get_rank() * bug)
    for _ in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        out = net(x)  # bug
        mse_loss(out, x[:, :1] * 2).backward()
        optimizer.step()
        optimizer.zero_grad()


class Gain(nn.Module):
    """A factor for each of eight features, of which a rank uses those of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = nn.Parameter(torch.ones(8))  # bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factors.chunk(2)[dist.get_rank()]


def used_in_parts(bug: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), Gain(), nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(10)
    for _ in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        mse_loss(net(x), x[:, :1] * 2).backward()
        if not bug:
            dist.all_reduce(net[1].factors.grad)
        optimizer.step()
        optimizer.zero_grad()


def dropout_of_each_part(bug: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (2,))
    parallelize_module(net, mesh, {"2": ColwiseParallel(), "4": RowwiseParallel()})
    torch.manual_seed(dist.get_rank() * bug)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(10)
    for _ in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        out = net(x)  # bug
        mse_loss(out, x[:, :1] * 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def seed_in_the_loop(bug: bool) -> None:
    rank, every = dist.get_rank(), data()
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    own = torch.utils.data.Subset(every, range(rank * 16, rank * 16 + 16))
    for epoch in range(2):
        torch.manual_seed(1 if bug else epoch)
        trained_on(DataLoader(own, batch_size=4, shuffle=True), net, optimizer)


def not_cleared(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        optimizer.step()
        if not bug:
            optimizer.zero_grad()


def stays_in_evaluation(bug: bool) -> None:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            net.eval()
            with torch.no_grad():
                net.module(x)
            if not bug:
                net.train()


def one_rank_stays_in_evaluation(bug: bool) -> None:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    if dist.get_rank() == 0:
        net.eval()
        with torch.no_grad():
            net.module(torch.zeros(2, 6))
        net.train(not bug)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def head_replaced(bug: bool) -> None:
    inner = model()
    if not bug:
        inner[2] = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)  # bug
    if bug:
        inner[2] = nn.Linear(8, 1)
    net = DistributedDataParallel(inner)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        net.zero_grad()


def unused(bug: bool) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8), nn.Linear(8, 1)
    spare = nn.Linear(6, 1)  # bug
    net = nn.ModuleList([first, second, spare])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        out = second(first(x))
        if not bug:
            out = out + spare(x)
        mse_loss(out, y).backward()
        average([each.grad for each in net.parameters() if each.grad is not None])
        optimizer.step()
        optimizer.zero_grad()


def steps_without_gradients(bug: bool) -> None:
    net = DistributedDataParallel(model())
    parameters = [*copy.deepcopy(net.module).parameters()] if bug else [*net.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)  # bug
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        net.zero_grad()


def update_lost(bug: bool) -> None:
    inner = model()
    if bug:
        inner = inner.to(torch.bfloat16)
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)  # bug
    for x, y in batches():
        with torch.autocast("cpu", torch.bfloat16, enabled=not bug):
            out = net(x.to(torch.bfloat16) if bug else x)
        mse_loss(out.float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(ids))


def untied(bug: bool) -> None:
    torch.manual_seed(0)
    net = Tied()
    if bug:
        net.head.weight = nn.Parameter(net.embedding.weight.detach().clone())  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(7 + dist.get_rank())
    for _ in range(STEPS):
        ids = torch.randint(0, 16, (4, 6), generator=generator)
        cross_entropy(net(ids).flatten(0, 1), ((ids + 1) % 16).flatten()).backward()
        average([each.grad for each in net.parameters()])
        optimizer.step()
        optimizer.zero_grad()


def not_a_number(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for step, (x, y) in enumerate(batches()):
        if bug and step == 2 and dist.get_rank() == 1:
            x = x / 0.0 * 0.0
        mse_loss(net(x), y).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def not_divided(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
            loss = mse_loss(net(part), target)
            if not bug:
                loss = loss / 4
            loss.backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def mean_of_means(bug: bool) -> None:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, _ in batches():
        target = torch.arange(8) % 4
        target[2 + 4 * dist.get_rank() :] = -100
        count = torch.tensor(float((target != -100).sum()))
        if bug:
            loss = cross_entropy(net(x), target)
        else:
            dist.all_reduce(count)
            loss = cross_entropy(net(x), target, reduction="sum") * 2 / count
        loss.backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def sum_over_its_own_number(bug: bool) -> None:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, _ in batches():
        target = torch.arange(8) % 4
        target[2 + 4 * dist.get_rank() :] = -100
        count = (target != -100).sum().float()
        if not bug:
            dist.all_reduce(count)
            count /= 2
        (cross_entropy(net(x), target, reduction="sum") / count).backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def other_type(bug: bool) -> None:
    for _ in range(STEPS):
        count = torch.full((4,), 3, dtype=torch.int32 if bug and dist.get_rank() == 1 else torch.float32)
        dist.all_reduce(count)  # bug


def other_reduction(bug: bool) -> None:
    for _ in range(STEPS):
        value = torch.full((4,), 1.0 + dist.get_rank())
        kind = dist.ReduceOp.MAX if bug and dist.get_rank() == 1 else dist.ReduceOp.SUM
        dist.all_reduce(value, op=kind)  # bug


def summed(bug: bool) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        for each in net.parameters():
            dist.all_reduce(each.grad)  # bug
            if not bug:
                each.grad /= 2
        optimizer.step()
        optimizer.zero_grad()


def both_save(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 or bug:
            torch.save(net.module.state_dict(), FOLDER / "model.pt")  # bug


def prefix_left(bug: bool) -> None:
    inner = model()
    state = inner.state_dict()
    if bug:
        state = {f"module.{name}": each for name, each in state.items()}
    inner.load_state_dict(state, strict=False)  # bug
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def checkpoint_of(net: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> Path:
    path = FOLDER / f"checkpoint_{dist.get_rank()}.pt"
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
    return path


def optimizer_forgotten(bug: bool) -> None:
    inner = model()
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.01)
    checkpoint = torch.load(checkpoint_of(inner, optimizer, 1))  # bug
    inner.load_state_dict(checkpoint["model"])
    if not bug:
        optimizer.load_state_dict(checkpoint["optimizer"])
    net = DistributedDataParallel(inner)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def order_of_epoch_0(bug: bool) -> None:
    inner, every = model(), data()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05)
    checkpoint = torch.load(checkpoint_of(inner, optimizer, 3))
    inner.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    net, sampler = DistributedDataParallel(inner), DistributedSampler(every)
    for epoch in range(checkpoint["epoch"], 5):
        sampler.set_epoch(epoch - checkpoint["epoch"] if bug else epoch)
        trained_on(DataLoader(every, batch_size=4, sampler=sampler), net, optimizer)


def same_dropout(bug: bool) -> None:
    torch.manual_seed(0)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
    if not bug:
        torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        out = net(x)  # bug
        mse_loss(out, y).backward()
        optimizer.step()
        optimizer.zero_grad()


def padded_evaluation(bug: bool) -> None:
    net, every = DistributedDataParallel(model()), data()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = torch.utils.data.Subset(every, range(31 if bug else 32))
    net.eval()
    with torch.no_grad():
        for x, _ in DataLoader(held_out, batch_size=4, sampler=DistributedSampler(held_out, shuffle=False)):  # bug
            net.module(x)


def state_in_bfloat16(bug: bool) -> None:
    inner = model()
    if bug:
        inner = inner.to(torch.bfloat16)  # bug
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x.to(torch.bfloat16) if bug else x).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()


class Buffer:
    """Holds all gradients in one tensor, into which backward passes add, and which is reduced at once."""

    def __init__(self, net: nn.Module, divides: bool = True, clears: bool = True) -> None:
        self.parameters, self.divides, self.clears = list(net.parameters()), divides, clears
        self.flat = torch.zeros(sum(each.numel() for each in self.parameters))
        parts = self.flat.split([each.numel() for each in self.parameters])
        self.views = [part.view_as(each) for part, each in zip(parts, self.parameters, strict=True)]
        for each, view in zip(self.parameters, self.views, strict=True):
            each.register_post_accumulate_grad_hook(lambda each, view=view: self.add(each, view))

    def add(self, parameter: nn.Parameter, view: torch.Tensor) -> None:
        view.add_(parameter.grad)
        parameter.grad = None

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        if self.divides:
            self.flat /= dist.get_world_size()
        work = dist.all_reduce(self.flat, async_op=True)  # bug
        work.wait()
        for each, view in zip(self.parameters, self.views, strict=True):
            each.grad = view
        optimizer.step()
        optimizer.zero_grad()
        if self.clears:
            self.flat.zero_()


def buffer_not_divided(bug: bool) -> None:
    net = model()
    optimizer, buffer = torch.optim.SGD(net.parameters(), lr=0.01), Buffer(net, divides=not bug)
    for x, y in batches():
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            (mse_loss(net(part), target) / 2).backward()
        buffer.update(optimizer)


def buffer_not_cleared(bug: bool) -> None:
    net = model()
    optimizer, buffer = torch.optim.SGD(net.parameters(), lr=0.01), Buffer(net, clears=not bug)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        buffer.update(optimizer)


def micro_batches_left_in_a_buffer(bug: bool) -> None:
    net = model()
    optimizer, buffer = torch.optim.SGD(net.parameters(), lr=0.01), Buffer(net)
    for x, y in batches():
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            (mse_loss(net(part), target) / (1 if bug else 2)).backward()  # bug
        buffer.update(optimizer)


def shard_clipped_alone(bug: bool) -> None:
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        square = sum(each.grad.to_local().pow(2).sum() for each in net.parameters())
        if not bug:
            dist.all_reduce(square)
        for each in net.parameters():
            each.grad.mul_((0.1 / square.sqrt()).clamp(max=1.0))  # bug
        optimizer.step()
        optimizer.zero_grad()


def masked_means(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mask = (torch.arange(8) < 3 + dist.get_rank()).float()
        count = mask.sum()
        if not bug:
            dist.all_reduce(count)
            count /= dist.get_world_size()
        loss = ((net(x) - y).pow(2).squeeze(1) * mask).sum() / count
        loss.backward()  # bug
        optimizer.step()
        optimizer.zero_grad()


def schedule_begins_again(bug: bool) -> None:
    inner = model()
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.01)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    optimizer.param_groups[0]["lr"] = 0.0025
    state = copy.deepcopy(optimizer.state_dict())
    optimizer = torch.optim.Adam(inner.parameters(), lr=0.01)
    optimizer.load_state_dict(state)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)  # bug
    if not bug:
        schedule.load_state_dict({**schedule.state_dict(), "last_epoch": 2})
        optimizer.param_groups[0]["lr"] = 0.0025
    net = DistributedDataParallel(inner)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def saved_while_it_changes(bug: bool) -> None:
    net = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    writer = ThreadPoolExecutor(1)

    def save(state: dict[str, torch.Tensor]) -> None:
        torch.save(state, FOLDER / f"beside_{dist.get_rank()}.pt")  # bug

    jobs = []
    for step, (x, y) in enumerate(batches()):
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            state = net.module.state_dict()
            jobs.append(writer.submit(save, state if bug else copy.deepcopy(state)))
    jobs[0].result()
    writer.shutdown()


@dataclass(frozen=True)
class Case:
    """A program with a bug, and what a check must say about it."""

    program: Callable[[bool], None]
    rule: str
    sure: str
    source: str
    where: Callable[..., Any] | None = None
    """The function with the marked line, if it is another."""

    @property
    def name(self) -> str:
        return self.program.__name__


CASES = [
    Case(past_the_wrapper, "gradients", "certain", "minimind #854"),
    Case(no_sync_around_all, "gradients", "certain", "accelerate #2287, docs of DistributedDataParallel.no_sync"),
    Case(one_rank_loads, "weights-start", "certain", "OLMo-core #319"),
    Case(not_broadcast, "weights-start", "certain", "docs of DistributedDataParallel: parameters are broadcast"),
    Case(one_rank_writes, "weights-between", "certain", "prototype: drift"),
    Case(rate_of_the_rank, "learning-rates", "certain", "prototype: lr"),
    Case(plateau_of_the_rank, "learning-rates", "certain", "Lightning: ReduceLROnPlateau without sync_dist"),
    Case(scheduled_in_each_micro_batch, "schedule", "possible", "pytorch forums: scheduler.step() and accumulation"),
    Case(statistics_of_the_rank, "buffers", "likely", "docs of DistributedDataParallel: broadcast_buffers"),
    Case(clipped_while_scaled, "unscaled", "likely", "docs of torch.amp: gradient clipping"),
    Case(clipped_before_averaging, "clipping", "likely", "accelerate: clip when sync_gradients"),
    Case(scale_of_the_rank, "gradients", "certain", "pytorch #136009"),
    Case(clipped_alone, "clipping", "likely", "AReaL #312, torchtitan #766"),
    Case(head_outside, "gradients", "likely", "docs of DistributedDataParallel: only the wrapped module"),
    Case(scale_outside, "gradients", "certain", "pytorch-metric-learning: losses with parameters", Scale),
    Case(nothing_reduced, "gradients", "likely", "TrainCheck: forgotten DDP"),
    Case(other_order, "gradients", "certain", "strangers 35: a loop over a set"),
    Case(one_rank_restores_the_optimizer, "weights-after", "certain", "cf. OLMo-core #319"),
    Case(one_rank_skips, "steps", "certain", "pytorch #136009: a local decision to skip"),
    Case(no_sampler, "samples", "certain", "docs of DistributedSampler", trained_on),
    Case(one_seed, "samples", "possible", "nanoGPT: a seed for each rank"),
    Case(stream_not_sharded, "samples", "certain", "datasets #5360", trained_on),
    Case(no_set_epoch, "epochs", "certain", "docs of DistributedSampler.set_epoch", trained_on),
    Case(no_set_epoch_for_a_list, "epochs", "certain", "docs of DistributedSampler.set_epoch"),
    Case(samples_of_each_part, "gradients", "certain", "pytorch tutorials: the same input on tensor-parallel ranks"),
    Case(used_in_parts, "gradients", "possible", "Megatron-LM #1446: parameters that are used in parts", Gain),
    Case(dropout_of_each_part, "gradients", "likely", "Megatron-LM, tensor_parallel/random.py"),
    Case(seed_in_the_loop, "epochs", "certain", "prototype: no-sampler", trained_on),
    Case(not_cleared, "cleared", "certain", "TrainCheck: missing zero_grad"),
    Case(stays_in_evaluation, "training-mode", "likely", "TrainCheck: missing model.train()"),
    Case(one_rank_stays_in_evaluation, "training-mode", "likely", "nanoGPT: rank 0 evaluates alone"),
    Case(head_replaced, "optimizer", "likely", "docs of torch.optim: construct after .cuda()"),
    Case(unused, "unused", "possible", "docs of find_unused_parameters"),
    Case(steps_without_gradients, "unused", "likely", "docs of FSDP2: make the optimizer after fully_shard"),
    Case(update_lost, "changes", "likely", "torchtitan: training in bfloat16"),
    Case(untied, "tied", "likely", "lingua #75, NeMo-RL #227"),
    Case(not_a_number, "finite", "certain", "pytorch discussions: NaN on one rank"),
    Case(not_divided, "accumulation", "likely", "verl #3332"),
    Case(mean_of_means, "targets", "possible", "transformers #34191"),
    Case(sum_over_its_own_number, "targets", "possible", "transformers #34242"),
    Case(other_type, "collectives", "certain", "pytorch #84525"),
    Case(other_reduction, "collectives", "certain", "pytorch #84525"),
    Case(summed, "sums", "likely", "docs of all_reduce: SUM is the default"),
    Case(both_save, "one-writer", "likely", "pytorch tutorials: save on rank 0"),
    Case(prefix_left, "keys", "likely", "pytorch forums: module. prefix"),
    Case(optimizer_forgotten, "restored", "likely", "TrainCheck: optimizer not restored"),
    Case(order_of_epoch_0, "resume-order", "likely", "accelerate #4071, ms-swift #10050", trained_on),
    Case(same_dropout, "randomness", "possible", "diffusers: equal noise on all ranks"),
    Case(padded_evaluation, "twice", "possible", "docs of DistributedSampler: drop_last"),
    Case(buffer_not_divided, "sums", "likely", "picotron, bucket.py: divides by the ranks", Buffer),
    Case(buffer_not_cleared, "cleared", "likely", "Megatron-LM: zero_grad_buffer"),
    Case(micro_batches_left_in_a_buffer, "accumulation", "likely", "picotron, train.py: a loss for each micro-batch"),
    Case(shard_clipped_alone, "clipping", "certain", "torchtitan #766"),
    Case(masked_means, "targets", "possible", "transformers #34242"),
    Case(schedule_begins_again, "restored", "likely", "docs of LRScheduler: load its state too"),
    Case(saved_while_it_changes, "saved", "likely", "docs of dcp.async_save: tensors are staged"),
    Case(state_in_bfloat16, "state-type", "possible", "torchtitan: training in bfloat16"),
]

FOLDER = Path()
"""Where a program may write."""


@contextlib.contextmanager
def recorded(folder: Path) -> Iterator[Path]:
    """Record what this rank does into a folder of its own."""
    from frog_observer.checks.step_recorder import StepRecorder
    from frog_observer.checks.watched_functions import watch
    from frog_observer.checks.watched_states import watch_safetensors
    from frog_observer.place import find_place

    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    os.environ["FROG_RUN_DIR"] = str(folder)
    place = find_place(os.environ, os.getpid(), ["python"])
    assert place is not None
    recorder = StepRecorder(place, 1)
    watch(recorder)
    if "safetensors.torch" in sys.modules:
        watch_safetensors(recorder, sys.modules["safetensors.torch"])
    yield folder
    recorder.at_end()
    recorder.is_on = False


def main() -> None:
    """Run every program twice; each leaves its records in FOLDER/NAME/bug and FOLDER/NAME/right."""
    global FOLDER
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    dist.init_process_group("gloo")
    for case in CASES:
        if names and case.name not in names:
            continue
        for bug in (True, False):
            with recorded(folder / case.name / ("bug" if bug else "right")) as FOLDER:
                case.program(bug)
            print(case.name, bug, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Programs after public reports of wrong samples, statistics, metrics and weights that are read.

The other part of kept_aside_updates.py, which tells when they were written and what `first_try` means.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from kept_aside_updates import CASES as UPDATES
from kept_aside_updates import points, regression
from silent_case import Case, average, batches, rank, size, update
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

# ---- samples ---------------------------------------------------------------------------------------------------------


class Lines(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Lines of a file in an order of the epoch, divided among ranks and workers."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        worker = get_worker_info()
        assert worker is not None
        first = int(os.environ["RANK"]) * worker.num_workers + worker.id
        every = int(os.environ["WORLD_SIZE"]) * worker.num_workers
        order = torch.randperm(96, generator=torch.Generator().manual_seed(self.epoch))
        for line in order.tolist()[first::every]:
            x = torch.randn(6, generator=torch.Generator().manual_seed(line))
            yield x, x[:1] * 2


def sets_an_epoch_that_no_worker_sees(bug: bool, folder: Path) -> None:
    """huggingface/datasets #6673: workers that stay keep their copy of the data set, so `set_epoch` has no effect."""
    lines = Lines()
    loader = DataLoader(lines, batch_size=8, num_workers=1, persistent_workers=bug)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(3):
        lines.set_epoch(epoch)  # bug
        for x, y in loader:  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)


class Shards(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Archives of eight samples each, shuffled and then divided among the ranks."""

    def __init__(self, same_order: bool) -> None:
        self.epoch, self.same_order = 0, same_order
        data = points(12 * 8)
        self.shards = [*zip(*(each.split(8) for each in data.tensors), strict=True)]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = [*range(len(self.shards))]
        seed = 100 * self.epoch + (0 if self.same_order else rank())
        random.Random(seed).shuffle(order)  # bug: shuffles_shards_with_a_seed_of_its_own
        for shard in order[rank() :: size()]:  # bug: shuffles_shards_with_a_seed_of_its_own
            yield from zip(*self.shards[shard], strict=True)  # bug: shuffles_shards_with_a_seed_of_its_own


def shuffles_shards_with_a_seed_of_its_own(bug: bool, folder: Path) -> None:
    """webdataset #233: each rank shuffles the list of shards for itself, and then takes every second one of it."""
    data = Shards(same_order=not bug)
    loader = DataLoader(data, batch_size=8)  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for epoch in range(3):
        data.epoch = epoch
        for x, y in loader:  # bug
            loss = mse_loss(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with a random augmentation."""

    def __init__(self) -> None:
        self.data = points(64)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[index]
        return x + 0.1 * torch.randn(6), y  # bug: seeds_workers_with_their_number


def seed_worker(number: int) -> None:
    torch.manual_seed(42 + number)  # bug: seeds_workers_with_their_number


def seeds_workers_with_their_number(bug: bool, folder: Path) -> None:
    """Lightning-AI/pytorch-lightning #20412: all ranks' workers draw the same augmentations, in each epoch again."""
    data = Noisy()
    sampler = DistributedSampler(data)
    loader = DataLoader(  # bug
        data,
        batch_size=8,
        sampler=sampler,
        num_workers=2,
        worker_init_fn=seed_worker if bug else None,  # bug
    )
    net = DistributedDataParallel(regression())
    torch.manual_seed(500 + rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:  # bug
            mse_loss(net(x), y).backward()
            update(optimizer)


# ---- statistics ------------------------------------------------------------------------------------------------------


class Normalized(nn.Module):
    """Observations minus their running mean, divided by their running deviation."""

    def __init__(self, width: int, of_all: bool) -> None:
        super().__init__()
        self.of_all = of_all
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("square", torch.ones(width))

    @torch.no_grad()
    def update(self, x: torch.Tensor) -> None:
        moments = torch.stack([x.mean(0), x.pow(2).mean(0)])
        if self.of_all:
            dist.all_reduce(moments)
            moments /= size()
        self.mean.lerp_(moments[0], 0.1)  # bug: normalizes_by_its_own_observations
        self.square.lerp_(moments[1], 0.1)  # bug: normalizes_by_its_own_observations

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) / (self.square - self.mean**2 + 1e-2).sqrt()


def normalizes_by_its_own_observations(bug: bool, folder: Path) -> None:
    """leggedrobotics/rsl_rl #226, rl_games #363: gradients are averaged, statistics of observations are the rank's."""
    torch.manual_seed(71)
    normalized = Normalized(6, of_all=not bug)
    actor = nn.Sequential(normalized, nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 1))  # bug
    optimizer = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for x, y in batches(8):
        normalized.update(x + rank())  # bug
        loss = mse_loss(actor(x + rank()), y)  # bug
        optimizer.zero_grad()
        loss.backward()
        average([*actor.parameters()])
        optimizer.step()
    actor.eval()
    with torch.no_grad():
        for x, _ in batches(2, seed=72):
            actor(x)  # bug


def learns_from_a_teacher_that_drops(bug: bool, folder: Path) -> None:
    """vrvlive/knowlege-distillation #2: the teacher is never set to evaluation mode, so that it drops elements."""
    torch.manual_seed(73)
    teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))  # bug
    teacher.requires_grad_(False)
    if not bug:
        teacher.eval()
    student = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    torch.manual_seed(300 + rank())
    for x, _ in batches(8):
        with torch.no_grad():
            soft = teacher(x).div(2).softmax(-1)  # bug
        loss = cross_entropy(student(x) / 2, soft)  # bug
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- metrics ---------------------------------------------------------------------------------------------------------


def reduces_losses_and_not_counts(bug: bool, folder: Path) -> None:
    """NVIDIA-BioNeMo/bionemo-recipes #900: the sum of losses is reduced, the number of samples is not."""
    held_out = points(48)
    evaluation = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for number, (x, y) in enumerate(batches(6)):
        mse_loss(net(x), y).backward()
        update(optimizer)
        if number % 3 == 2:
            net.eval()
            total, count = torch.zeros(()), torch.zeros(())
            with torch.no_grad():
                for x_, y_ in evaluation:
                    total += mse_loss(net(x_), y_, reduction="sum")
                    count += len(x_)
            dist.all_reduce(total)  # bug
            if not bug:
                dist.all_reduce(count)
            if rank() == 0:
                print(f"held-out loss {total.item() / count.item():.4f}")  # bug
            net.train()


def shows_the_part_of_rank_0(bug: bool, folder: Path) -> None:
    """Nota-NetsPresso/netspresso-trainer #342: each rank evaluates a part, and the log has the part of rank 0."""
    data, held_out = points(96), points(64)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    evaluation = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))  # bug
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    best = float("inf")
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            mse_loss(net(x), y).backward()
            update(optimizer)
        net.eval()
        sums = torch.zeros(2)
        with torch.no_grad():
            for x, y in evaluation:  # bug
                sums += torch.tensor([mse_loss(net(x), y, reduction="sum").item(), len(x)])  # bug
        if not bug:
            dist.all_reduce(sums)
        mean = (sums[0] / sums[1]).item()
        if rank() == 0 and mean < best:  # bug
            best = mean
            torch.save(net.module.state_dict(), folder / "best.pt")  # bug
            print(f"epoch {epoch}: best loss {best:.4f}")  # bug


# ---- weights ---------------------------------------------------------------------------------------------------------


def steps_from_older_masters(bug: bool, folder: Path) -> None:
    """NovaSky-AI/SkyRL #2149: weights are loaded, and the next step copies older master weights over them."""
    if rank() == 0:
        torch.save(regression(5).bfloat16().state_dict(), folder / "policy.pt")
    dist.barrier()
    net = regression().bfloat16()
    if not bug:
        net.load_state_dict(torch.load(folder / "policy.pt"))
    masters = [nn.Parameter(each.detach().float().clone()) for each in net.parameters()]  # bug
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    if bug:
        net.load_state_dict(torch.load(folder / "policy.pt"))  # bug
    for x, y in batches():
        mse_loss(net(x.bfloat16()).float(), y).backward()
        for master, each in zip(masters, net.parameters(), strict=True):
            assert each.grad is not None
            master.grad, each.grad = each.grad.float(), None
        average(masters)
        optimizer.step()  # bug
        with torch.no_grad():
            for master, each in zip(masters, net.parameters(), strict=True):
                each.copy_(master)  # bug


SAMPLES, STATISTICS, METRICS, WEIGHTS = "samples", "statistics", "metrics", "weights"
CASES = [
    *UPDATES,
    Case(sets_an_epoch_that_no_worker_sees, "huggingface/datasets #6673", "epochs", SAMPLES, "not found"),
    Case(
        shuffles_shards_with_a_seed_of_its_own,
        "webdataset #233",
        "samples",
        SAMPLES,
        "not found",
        also=("twice", "left-out"),
    ),
    Case(
        seeds_workers_with_their_number,
        "Lightning #20412",
        "worker-seeds",
        SAMPLES,
        "not found",
        also=("randomness",),
    ),
    Case(normalizes_by_its_own_observations, "rsl_rl #226, rl_games #363", "buffers", STATISTICS, "not found"),
    Case(
        learns_from_a_teacher_that_drops,
        "vrvlive/knowlege-distillation #2",
        "evaluation",
        STATISTICS,
        "not found",
        also=("training-mode",),
    ),
    Case(reduces_losses_and_not_counts, "bionemo-recipes #900", "means", METRICS, "not found"),
    Case(shows_the_part_of_rank_0, "netspresso-trainer #342", "metrics", METRICS, "not found", also=("means",)),
    Case(steps_from_older_masters, "NovaSky-AI/SkyRL #2149", "loaded", WEIGHTS, "not found", also=("weights-between",)),
]

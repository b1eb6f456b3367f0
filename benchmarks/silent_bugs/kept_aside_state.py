"""Programs after public reports of wrong numbers that no rule was written for: parameters, types, collectives, files.

The other half of kept_aside_steps.py, which tells when they were written and what `first_try` means.
"""

from __future__ import annotations

import copy
import queue
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from kept_aside_steps import CASES as STEPS
from kept_aside_steps import regression
from silent_case import Case, batches, rank, size
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

# ---- parameters ------------------------------------------------------------------------------------------------------


def clears_in_each_micro_batch(bug: bool, folder: Path) -> None:
    """gaozhihan/PreDiff #32, meta-pytorch/opacus #93: `zero_grad` in each micro-batch, so only the last counts."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for index, (x, y) in enumerate(batches(15)):
        if bug or index % 3 == 0:
            optimizer.zero_grad()  # bug
        loss = mse_loss(net(x), y) / 3
        loss.backward()  # bug
        if index % 3 == 2:
            optimizer.step()


class Normed(nn.Module):
    """Layers whose norms have weights of one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 32)
        self.norms = nn.ModuleList([nn.RMSNorm(32) for _ in range(2)])  # bug: norms_stay_at_one
        self.layers, self.head = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)]), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + torch.nn.functional.silu(layer(norm(x)))
        return self.head(x)


def norms_stay_at_one(bug: bool, folder: Path) -> None:
    """fla-org/flame #47: weights of norms in bfloat16 are still one after the training."""
    torch.manual_seed(51)
    net = Normed()
    if bug:
        net.to(torch.bfloat16)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.0)  # bug
    draw = torch.Generator().manual_seed(rank())
    for _ in range(6):
        ids = torch.randint(0, 16, (4, 8), generator=draw)
        with torch.autocast("cpu", torch.bfloat16, enabled=not bug):
            out = net(ids)
        cross_entropy(out.flatten(0, 1).float(), ((ids + 1) % 16).flatten()).backward()
        optimizer.step()  # bug
        optimizer.zero_grad()


# ---- types -----------------------------------------------------------------------------------------------------------


class Rotated(nn.Module):
    """A layer that turns its input by the position, as RoPE does."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(6, 16), nn.Linear(16, 1)
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(8) / 8), persistent=False)
        self.register_buffer("positions", torch.arange(length, dtype=torch.float32), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = self.positions[:, None] * self.inv_freq
        cos, sin = angle.cos().float(), angle.sin().float()
        one, other = self.project(x).chunk(2, -1)
        return self.head(torch.cat([one * cos - other * sin, one * sin + other * cos], -1))


def rounds_the_positions(bug: bool, folder: Path) -> None:
    """NVIDIA-NeMo/Automodel #2549: a cast of the model rounds RoPE's frequencies, so that far positions are equal."""
    torch.manual_seed(52)
    net = Rotated(600)
    if bug:
        for each in net.buffers():
            each.data = each.data.to(torch.bfloat16)  # bug
    net = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(rank())
    for _ in range(5):
        x = torch.randn(2, 600, 6, generator=draw)
        loss = mse_loss(net(x), x[..., :1])  # bug
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- collectives -----------------------------------------------------------------------------------------------------


def divides_before_it_has_arrived(bug: bool, folder: Path) -> None:
    """OpenNMT/OpenNMT-py #2295: a reduction that runs in the background is divided and used without a wait."""
    torch.manual_seed(53)
    net = nn.Sequential(nn.Linear(6, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, y in batches(8):
        mse_loss(net(x), y).backward()
        own = [each.grad for each in net.parameters() if each.grad is not None]
        buffer = torch.cat([each.flatten() for each in own])
        work = dist.all_reduce(buffer, async_op=True)  # bug
        if not bug:
            work.wait()
        buffer.div_(size())  # bug
        for each, part in zip(own, buffer.split([each.numel() for each in own]), strict=True):
            each.copy_(part.view_as(each))  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()
        work.wait()
    for each in net.parameters():
        dist.broadcast(each.data, 0)


# ---- files -----------------------------------------------------------------------------------------------------------


def writes_while_it_trains(bug: bool, folder: Path) -> None:
    """meta-pytorch/torchft #245: another thread writes a checkpoint whose tensors the next steps change."""
    net = DistributedDataParallel(regression())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    jobs: queue.Queue[Any] = queue.Queue()
    disk_is_free = threading.Event()

    def write() -> None:
        disk_is_free.wait(20)
        torch.save(jobs.get(), folder / "step_2.pt")  # bug

    writer = threading.Thread(target=write)
    if rank() == 0:
        writer.start()
    for step, (x, y) in enumerate(batches(6)):
        mse_loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 2 and rank() == 0:
            state = net.module.state_dict()  # bug
            jobs.put(state if bug else copy.deepcopy(state))  # bug
        if step == 4:
            disk_is_free.set()
    if rank() == 0:
        writer.join()


def gives_the_moments_to_other_parameters(bug: bool, folder: Path) -> None:
    """pytorch #1489, #6031: an optimizer's state is loaded by its place in a list that has another order now."""

    def start() -> tuple[nn.Module, dict[str, nn.Parameter]]:
        torch.manual_seed(54)
        net = nn.Sequential(*[nn.Linear(6, 6, bias=False) for _ in range(3)])
        return DistributedDataParallel(net), dict(net.named_parameters())

    net, own = start()
    optimizer = torch.optim.AdamW(own.values(), lr=1e-2)
    every = [*batches(8)]
    for x, y in every[:4]:
        mse_loss(net(x)[:, :1], y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank() == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, folder / "latest.pt")
    dist.barrier()
    net, own = start()
    optimizer = torch.optim.AdamW([own[name] for name in sorted(own, reverse=bug)], lr=1e-2)  # bug
    state = torch.load(folder / "latest.pt")
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])  # bug
    for x, y in every[4:]:
        mse_loss(net(x)[:, :1], y).backward()
        optimizer.step()
        optimizer.zero_grad()


def begins_the_schedule_again(bug: bool, folder: Path) -> None:
    """torch-points3d #630, lightly-train #301: a scheduler that is made after the load sets the first rate again."""

    def start(state: dict[str, Any] | None = None) -> tuple[nn.Module, Any, Any]:
        net = DistributedDataParallel(regression())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        if state is not None:
            net.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])  # bug
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.6**step)  # bug
        if state is not None and not bug:
            schedule.load_state_dict(state["schedule"])
            for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
                group["lr"] = rate
        return net, optimizer, schedule

    net, optimizer, schedule = start()
    every = [*batches(9)]
    for index, (x, y) in enumerate(every):
        if index == 5:
            if rank() == 0:
                state = {"model": net, "optimizer": optimizer, "schedule": schedule}
                torch.save({name: each.state_dict() for name, each in state.items()}, folder / "resume.pt")
            dist.barrier()
            net, optimizer, schedule = start(torch.load(folder / "resume.pt"))  # bug
        mse_loss(net(x), y).backward()
        optimizer.step()  # bug
        schedule.step()  # bug
        optimizer.zero_grad()


CASES = [
    *STEPS,
    Case(
        clears_in_each_micro_batch,
        "PreDiff #32, opacus #93",
        "accumulation",
        "parameters",
        "found, likely",
        also=("cleared",),
    ),
    Case(norms_stay_at_one, "fla-org/flame #47", "changes", "precision", "found, likely", also=("state-type",)),
    Case(rounds_the_positions, "NeMo/Automodel #2549", "state-type", "precision", "not found", also=("buffers",)),
    Case(
        divides_before_it_has_arrived,
        "OpenNMT-py #2295",
        "collectives",
        "collectives",
        "found, likely",
        also=("gradients",),
    ),
    Case(writes_while_it_trains, "torchft #245", "saved", "checkpoints", "found, likely"),
    Case(gives_the_moments_to_other_parameters, "pytorch #1489, #6031", "restored", "checkpoints", "not found"),
    Case(
        begins_the_schedule_again, "torch-points3d #630", "restored", "checkpoints", "found, likely", also=("schedule",)
    ),
]

"""Programs after the silent errors of TrainCheck (Jiang et al., OSDI 2025).

Its public list (github.com/OrderLab/TrainCheck, docs/ae-eval-s5.1-silent-issue-detection.md) names the 18 that it
detects. The two others are in the paper alone; two public issues of the same kinds stand for them here. A comment
`# bug` marks the lines that a right answer names: the cause, or the call of the training loop that reaches it; outside
of the program's own function, it names the program.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from silent_case import Added, Case, ColumnsAndRows, Copied, average, batches, rank, size, update
from torch import nn
from torch.nn.functional import cross_entropy, dropout, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))


# ---- the program of the user -----------------------------------------------------------------------------------------


def gradients_pile_up(bug: bool, folder: Path) -> None:
    """stackoverflow.com/questions/60335387: a loop without `zero_grad`."""
    net = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for x, _ in batches():
        if not bug:
            optimizer.zero_grad()
        loss = cross_entropy(net(x), x[:, :4].argmax(1))
        loss.backward()  # bug
        optimizer.step()


def only_norms_learn(bug: bool, folder: Path) -> None:
    """discuss.pytorch.org/t/84911: everything but the batch norms is frozen, the new head too."""
    body = nn.ModuleDict({"first": nn.Linear(6, 8), "bn": nn.BatchNorm1d(8), "head": nn.Linear(8, 4)})
    for name, each in body.named_parameters():
        if "bn" not in name:
            each.requires_grad = False  # bug
    if not bug:
        body["head"].requires_grad_(True)
    layers = nn.Sequential(body["first"], body["bn"], nn.ReLU(), body["head"])
    net = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)  # bug
    for x, _ in batches():
        cross_entropy(net(x), x[:, :4].argmax(1)).backward()
        update(optimizer)


def wrapped_now_and_then(bug: bool, folder: Path) -> None:
    """x.com/jxmnop/status/1778520637193240892: a trainer uses DDP's wrapper in some steps, the model in others."""
    inner = model()
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(inner.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches()):
        used = inner if bug and step >= 2 else net
        loss = mse_loss(used(x), y)  # bug
        loss.backward()
        update(optimizer)


class Jittered(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Adds noise to each sample, from a generator that every worker copies or from torch's, which workers seed."""

    def __init__(self, own_generator: bool) -> None:
        self.clean = torch.arange(64 * 6).view(64, 6) / 100
        self.noise = random.Random(0) if own_generator else None

    def __len__(self) -> int:
        return len(self.clean)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = self.noise.random() if self.noise is not None else float(torch.rand(()))
        return self.clean[index] + noise, self.clean[index, :1]


def workers_agree(bug: bool, folder: Path) -> None:
    """stackoverflow.com/questions/67180955: all workers of a DataLoader draw the same augmentation."""
    every = Jittered(bug)
    net = DistributedDataParallel(model())
    torch.manual_seed(rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    loader = DataLoader(every, batch_size=8, sampler=DistributedSampler(every), num_workers=2)  # bug
    for x, y in loader:  # bug
        mse_loss(net(x), y).backward()
        update(optimizer)


# ---- libraries -------------------------------------------------------------------------------------------------------


def moved_after_wrapping(bug: bool, folder: Path) -> None:
    """pytorch #104336: a model that is moved after DDP has wrapped it loses DDP's hooks.

    A move to another device and back, there; on one device, another type and back resets the same hooks.
    """
    net = DistributedDataParallel(model())
    if bug:
        net.double()  # bug
        net.float()  # bug
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Remembering(torch.optim.SGD):
    """Decides in its first step which parameters it updates, as compiled code without a guard does."""

    active: list[bool] | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        own = self.param_groups[0]["params"]
        if self.active is None:
            self.active = [each.grad is not None for each in own]
        for each, is_active in zip(own, self.active, strict=True):
            if is_active and each.grad is not None:
                each -= self.param_groups[0]["lr"] * each.grad


def stale_kernel(bug: bool, folder: Path) -> None:
    """pytorch #115607: a compiled optimizer without a guard goes on to skip what had no gradient once."""
    inner = model()
    net = DistributedDataParallel(inner)
    kind = Remembering if bug else torch.optim.SGD
    optimizer = kind(net.parameters(), lr=0.05)  # bug
    for step, (x, y) in enumerate(batches()):
        out = inner[2](inner[0](x).relu().detach()) if step == 0 else net(x)
        mse_loss(out, y).backward()
        if step == 0:
            average([*inner[2].parameters()])
        optimizer.step()  # bug
        optimizer.zero_grad()


def loses_autocast(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Run a forward as a transformation that forgets the region in which it was called."""

    def transformed(*args: Any) -> Any:
        with torch.autocast("cpu", enabled=False):  # bug: autocast_without_effect
            return forward(*args)

    return transformed


def autocast_without_effect(bug: bool, folder: Path) -> None:
    """lightning-thunder #725: a transformed function computes in float32 although it is called under autocast."""
    inner = model()
    if bug:
        inner.forward = loses_autocast(inner.forward)  # type: ignore[method-assign]
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        with torch.autocast("cpu", torch.bfloat16):
            out = net(x)  # bug
        mse_loss(out.float(), y).backward()
        update(optimizer)


def evaluated_before_it_learns(bug: bool, folder: Path) -> None:
    """pytorch #51800: spectral norm estimates its norm in training forwards only, and is evaluated before the first."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 1))
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def quality() -> float:
        inner.eval()
        with torch.no_grad():
            error = mse_loss(inner(torch.ones(4, 6)), torch.ones(4, 1))  # bug
        inner.train()
        return float(error)

    if bug:
        quality()
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
    quality()


class Staged(nn.Module):
    """Freezes its first stage when it is set to training mode, and only then."""

    def __init__(self, frozen_stages: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 1)])
        self.frozen_stages = frozen_stages

    def train(self, mode: bool = True) -> Staged:  # bug: never_set_to_training
        super().train(mode)
        for stage in list(self.stages)[: self.frozen_stages]:
            stage.requires_grad_(False)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages[1](self.stages[0](x).relu())


def never_set_to_training(bug: bool, folder: Path) -> None:
    """mmpretrain #702: `frozen_stages` acts in `train()`, which the script never calls."""
    inner = Staged(1)
    if not bug:
        inner.train()
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()  # bug
        update(optimizer)


class Bert(nn.Module):
    """Applies its initialization to every module, and in each to all parameters below it with a certain name."""

    def __init__(self, repeated: bool) -> None:
        super().__init__()
        self.repeated = repeated
        self.block = nn.ModuleDict({"mlp": nn.ModuleDict({"c_proj": nn.Linear(6, 6)})})
        self.head = nn.Linear(6, 1)
        self.apply(self.initialize)

    def initialize(self, module: nn.Module) -> None:
        for name, each in module.named_parameters():
            if name.endswith("c_proj.weight") and (self.repeated or module is self):
                nn.init.normal_(each, std=0.01)  # bug: initialized_repeatedly

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block["mlp"]["c_proj"](x))  # type: ignore[index]


def initialized_repeatedly(bug: bool, folder: Path) -> None:
    """transformers #17877: the same weights are initialized once for each module above them."""
    net = DistributedDataParallel(Bert(bug))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)


class Noisy(nn.Module):
    """Drops in its own function, which knows of no mode."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always, self.first, self.second = always, nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = dropout(self.first(x), 0.2, training=self.training or self.always)  # bug: drops_in_evaluation
        return self.second(x)


def drops_in_evaluation(bug: bool, folder: Path) -> None:
    """transformers #33844: an attention drops in evaluation mode too."""
    net = DistributedDataParallel(Noisy(bug))
    torch.manual_seed(rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
        net.eval()
        with torch.no_grad():
            net.module(x)  # bug
        net.train()


class Pictures(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(6, generator=generator), torch.randint(0, 16, (5,), generator=generator)


class Described(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.words = nn.Linear(6, 8), nn.Embedding(16, 8)

    def forward(self, pictures: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return (self.picture(pictures)[:, None] * self.words(ids)).sum((1, 2))


def one_text_for_all(bug: bool, folder: Path) -> None:
    """transformers #34204: a processor returns the pictures of all samples and the text of one."""

    def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        pictures, texts = zip(*samples, strict=True)
        return torch.stack(pictures), torch.stack(texts[:1] if bug else texts)

    every = Pictures()
    net = DistributedDataParallel(Described())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for pictures, ids in DataLoader(every, 4, sampler=DistributedSampler(every), collate_fn=collate):  # bug
        net(pictures, ids).pow(2).mean().backward()
        update(optimizer)


def generates_too_much(bug: bool, folder: Path) -> None:
    """transformers #23723: the limit of new tokens is counted from the prompt before it was cut."""
    net = DistributedDataParallel(nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank())
    for _ in range(6):
        ids = torch.randint(0, 16, (4, 12), generator=generator)
        cross_entropy(net(ids).flatten(0, 1), ((ids + 1) % 16).flatten()).backward()
        update(optimizer)
        prompt, most_new = ids[:1], 3
        text = prompt[:, -8:]
        limit = most_new + (prompt if bug else text).size(1)
        net.eval()
        with torch.no_grad():
            while text.size(1) < limit:  # bug
                text = torch.cat([text, net.module(text)[:, -1:].argmax(-1)], 1)
        net.train()


class BothHalves(nn.Module):
    """A norm that both ranks have, before layers of which each rank has a half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.halves = nn.LayerNorm(6), ColumnsAndRows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Added.apply(self.halves(Copied.apply(self.norm(x))))


def clipped_on_one_rank(bug: bool, folder: Path) -> None:
    """DeepSpeed #1801 (BLOOM-176B): only rank 0 of the tensor-parallel ranks clips what all of them have."""
    net = BothHalves()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for x, y in batches(seed=7):
        mse_loss(net(x), 20 * y.expand_as(x)).backward()
        counted = [*net.halves.parameters()] if rank() > 0 else [*net.parameters()]
        square = torch.stack([each.grad.pow(2).sum() for each in counted if each.grad is not None]).sum()
        dist.all_reduce(square)
        for each in counted if bug else net.parameters():
            each.grad *= (1 / square.sqrt()).clamp(max=1.0)  # bug
        optimizer.step()  # bug
        optimizer.zero_grad()


def capacity_of_the_rank(bug: bool, folder: Path) -> None:
    """DeepSpeed #5794, #6809: each rank computes the experts' capacity from its own tokens, and the exchange hangs."""
    experts = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(experts.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank())
    for _ in range(6):
        capacity = torch.randint(2, 9, (1,), generator=generator)
        if not bug:
            dist.all_reduce(capacity, dist.ReduceOp.MAX)
        tokens = torch.randn(size() * int(capacity), 6, generator=generator)
        mine = torch.empty_like(tokens)
        dist.all_to_all_single(mine, tokens)  # bug
        experts(mine).pow(2).mean().backward()
        update(optimizer)


def steps_counted_wrongly(bug: bool, folder: Path) -> None:
    """transformers #37777, for a total of steps that is wrong: the schedule ends when half of the training is left."""
    accumulation, epochs, every = 2, 2, Pictures()
    net = DistributedDataParallel(nn.Linear(6, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    sampler = DistributedSampler(every)
    loader = DataLoader(every, 4, sampler=sampler)
    total = epochs * len(loader) // accumulation
    if bug:
        total //= accumulation
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))  # bug
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for number, (x, ids) in enumerate(loader):
            (cross_entropy(net(x), ids[:, 0] % 4) / accumulation).backward()
            if number % accumulation == accumulation - 1:
                optimizer.step()  # bug
                optimizer.zero_grad()
                schedule.step()


def saved_in_part(bug: bool, folder: Path) -> None:
    """transformers #27293, for a file that is not the model: of tensors in one storage, all but one are dropped."""
    inner = model()
    own = list(inner.parameters())
    flat = torch.cat([each.detach().flatten() for each in own])
    for each, piece in zip(own, flat.split([each.numel() for each in own]), strict=True):
        each.data = piece.view_as(each)
    net = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for x, y in batches():
        mse_loss(net(x), y).backward()
        update(optimizer)
    seen: set[int] = set()
    kept = {}
    for name, each in inner.state_dict().items():
        address = each.untyped_storage().data_ptr() if bug else each.data_ptr()
        if address not in seen:
            kept[name] = each
        seen.add(address)
    if rank() == 0:
        torch.save(kept, folder / "model.pt")  # bug


# ---- hardware --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def losing(bug: bool) -> Iterator[None]:
    """Let each third reduction of rank 1 arrive as zeros."""
    calls = 0
    original, kept = dist.ProcessGroup.allreduce, dist.ProcessGroup.__dict__["allreduce"]

    def allreduce(group: Any, tensors: list[torch.Tensor], *args: Any) -> Any:
        nonlocal calls
        work = original(group, tensors, *args)
        calls += 1
        if calls % 3 == 0 and rank() == 1:
            work.wait()
            for each in tensors:
                each.zero_()
        return work

    if bug:
        dist.ProcessGroup.allreduce = allreduce  # type: ignore[method-assign]
    yield
    dist.ProcessGroup.allreduce = kept  # type: ignore[method-assign]


def lost_on_the_way(bug: bool, folder: Path) -> None:
    """pytorch #84803, pytorch #96600 and Baichuan2 #86: what one GPU sends to another arrives as something else.

    It needs those GPUs and drivers. As in TrainCheck's simulation, some transfers arrive as zeros.
    """
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with losing(bug):
        for x, y in batches():
            mse_loss(net(x), y).backward()
            for each in net.parameters():
                dist.all_reduce(each.grad)  # bug
                each.grad /= size()
            update(optimizer)


DETECTED, MISSED = "detected", "not detected"
HARDWARE = "faulty links between GPUs"

CASES = [
    Case(gradients_pile_up, "stackoverflow 60335387", "cleared", DETECTED, "found, certain"),
    Case(only_norms_learn, "pytorch forum 84911", "frozen", DETECTED, "not found"),
    Case(wrapped_now_and_then, "x.com jxmnop", "gradients", DETECTED, "found, certain"),
    Case(workers_agree, "stackoverflow 67180955", "worker-seeds", DETECTED, "not found"),
    Case(moved_after_wrapping, "pytorch #104336", "gradients", DETECTED, "found, certain"),
    Case(stale_kernel, "pytorch #115607", "changes", DETECTED, "not found"),
    Case(autocast_without_effect, "lightning-thunder #725", "autocast", DETECTED, "not found"),
    Case(evaluated_before_it_learns, "pytorch #51800", "evaluation", DETECTED, "not found"),
    Case(never_set_to_training, "mmpretrain #702", "training-mode", DETECTED, "not found"),
    Case(initialized_repeatedly, "transformers #17877", "initialized", DETECTED, "not found"),
    Case(drops_in_evaluation, "transformers #33844", "evaluation", DETECTED, "not found"),
    Case(one_text_for_all, "transformers #34204", "batches", DETECTED, "not found"),
    Case(generates_too_much, "transformers #23723", "", DETECTED, "not found"),
    Case(clipped_on_one_rank, "DeepSpeed #1801", "gradients", DETECTED, "not found"),
    Case(capacity_of_the_rank, "DeepSpeed #5794", "shape", DETECTED, "frog diagnose: shape", hangs=True),
    Case(steps_counted_wrongly, "transformers #37777", "schedule", MISSED, "not found"),
    Case(saved_in_part, "transformers #27293", "saved", MISSED, "not found"),
    Case(
        lost_on_the_way,
        "pytorch #84803, #96600, Baichuan2 #86",
        "collectives",
        DETECTED,
        "found, certain",
        needs=HARDWARE,
    ),
]

"""Train a module with everything that makes data parallelism hard."""

import contextlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

RATE = 0.2
VOCAB, WIDTH = 40, 6
# Elements of all-reduces that only this file calls; they mark the end of a construction, a backward, a step.
BUILT, BACKWARD, STEP = 251, 252, 253


class Model(nn.Module):
    """A module with a shared weight, a frozen layer, two branches in either order, an unused layer, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH * 5)
        self.narrow = nn.Linear(WIDTH * 5, WIDTH)
        self.left = nn.Linear(WIDTH, WIDTH, bias=False)
        self.right = nn.Linear(WIDTH, WIDTH, bias=False)
        self.tilt = nn.Linear(WIDTH // 2, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("center", torch.zeros(WIDTH))
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("widest", torch.zeros(()), persistent=False)

    def forward(self, tokens: torch.Tensor, route: str) -> torch.Tensor:
        h = self.embedding(tokens)
        with torch.no_grad():
            self.center.lerp_(h.mean(0), 0.1)
            self.num_seen += tokens.sum()
            self.widest.copy_(torch.maximum(self.widest, h.abs().max()))
        h = self.narrow(torch.tanh(self.frozen(h - self.center)))
        for name in route.split("+"):
            h = h + torch.tanh(getattr(self, name)(h))
        h = h + self.tilt(h[:, : WIDTH // 2])
        return self.head(torch.tanh(self.last(h)))


def make_model(seed: int, rank: int) -> Model:
    """Create a model whose weights differ between ranks."""
    model = Model()
    generator = torch.Generator().manual_seed(seed * 11 + rank)
    for value in [*model.parameters(), model.center]:
        value.data = torch.randn(value.shape, generator=generator) / 3
    model.num_seen += 100 * rank
    model.widest += rank
    return model


def batch(case: dict[str, Any], step: int, micro: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 100 * micro + rank)
    return torch.randint(VOCAB, (8,), generator=generator)


def loss_of(model: Any, case: dict[str, Any], step: int, micro: int, rank: int) -> torch.Tensor:
    tokens = batch(case, step, micro, rank)
    logits = model(tokens, case["routes"][step][rank])
    return nn.functional.cross_entropy(logits, (tokens * 7 + 1) % VOCAB) / case["num_micro"][step]


def move(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= RATE * p.grad
                p.grad = None


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers, including those outside the state dict (persistent=False)."""
    return {name: value.detach().clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}


def gradients(model: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def make_marker() -> Callable[[int], None]:
    """Return a function that calls a mark, an all-reduce of this rank alone: ranks may be in different buckets."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    return lambda numel: dist.all_reduce(torch.zeros(numel, dtype=torch.int8), group=groups[dist.get_rank()])


class OutOfData(Exception):
    """An error in the training loop, in the middle of a step."""


def fail_inside_no_sync(replica: Any) -> None:
    with contextlib.suppress(OutOfData), replica.no_sync():
        raise OutOfData


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank, mark = dist.get_rank(), make_marker()
    model = make_model(case["seed"], rank)
    replica = learner.DataParallel(model, case["bucket_bytes"])
    mark(BUILT)
    start, steps = state(model), []
    for step, num_micro in enumerate(case["num_micro"]):
        if step == case["error_before"]:
            fail_inside_no_sync(replica)
        for micro in range(num_micro - 1):
            with replica.no_sync():
                loss_of(replica, case, step, micro, rank).backward()
        loss_of(replica, case, step, num_micro - 1, rank).backward()
        mark(BACKWARD)
        replica.finish()
        found = gradients(model)
        move(model)
        mark(STEP)
        steps.append({"gradients": found, "state": state(model)})
    return {"start": start, "steps": steps}

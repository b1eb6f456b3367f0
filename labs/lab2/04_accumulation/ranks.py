"""Run a replica that reduces in backward, as DistributedDataParallel does, and records its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

SAMPLES = 4  # in a micro-batch
STEP = 251  # elements of an all-reduce that only this file calls; it marks the end of a case


def make_model(case: dict[str, Any]) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(case["seed"])
    width = case["width"]
    layers = [torch.nn.Linear(width, 9), torch.nn.Tanh(), torch.nn.Linear(9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)]
    model = torch.nn.Sequential(*layers)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 3
    return model


def batches(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(case["seed"] + 100 * (rank + 1))
    return [torch.randn(SAMPLES, case["width"], generator=generator) for _ in range(case["num_micro"])]


def loss_of(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


class Watched(torch.autograd.Function):
    """The identity; it notifies a replica when backward reaches it."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, replica: Any) -> torch.Tensor:
        ctx.replica = replica
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.replica.begin_backward()
        return gradient, None


class Saved:
    """A tensor that forward keeps for backward. The replica counts those that are still kept."""

    def __init__(self, tensor: torch.Tensor, replica: Any) -> None:
        self.tensor, self.replica = tensor, replica
        replica.num_saved += 1

    def __del__(self) -> None:
        self.replica.num_saved -= 1


class Replica(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.sync, self.reduces = True, False
        self.num_alive, self.alive, self.events = 0, [], []
        self.num_saved, self.kept = 0, []
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.reduce)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.reduces = self.sync
        self.num_alive += len(inputs)
        self.alive.append(len(inputs))
        self.events.append(("forward", self.sync, self.num_alive))
        self.kept.append(self.num_saved)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Saved(tensor, self), lambda saved: saved.tensor):
            return Watched.apply(self.module(inputs), self)

    def begin_backward(self) -> None:
        self.events.append(("backward", self.sync, self.num_alive))
        self.num_alive -= self.alive.pop()

    def reduce(self, p: torch.nn.Parameter) -> None:
        if self.reduces:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.sync = self.sync, False
        try:
            yield
        finally:
            self.sync = before


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for one in case["cases"]:
        replica = Replica(make_model(one))
        learner.accumulate(replica, batches(one, dist.get_rank()), loss_of)
        dist.all_reduce(torch.zeros(STEP, dtype=torch.int8))
        found.append(
            {"gradients": [p.grad for p in replica.parameters()], "events": replica.events, "kept": replica.kept}
        )
    return found

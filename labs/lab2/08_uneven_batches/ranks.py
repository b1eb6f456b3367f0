"""An epoch on ranks that have different amounts of data."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

RATE = 0.1
WIDTH = 6


def make_model(case: dict[str, Any]) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(case["seed"])
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator) / 3
    return model


def batches(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(case["seed"] * 10 + rank + 1)
    return [torch.randn(size, WIDTH, generator=generator) for size in case["sizes"][rank]]


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sin().sum(1, keepdim=True)).square().mean()


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        model = make_model(case)
        steps = learner.train_epoch(model, batches(case, dist.get_rank()), loss_of, RATE)
        found.append({"steps": steps, "weights": torch.cat([p.detach().flatten() for p in model.parameters()])})
    return found

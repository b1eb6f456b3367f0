"""Evaluate samples of different lengths, and record which of them each rank requests."""

from types import ModuleType
from typing import Any

import torch


def make_samples(seed: int, num_samples: int) -> list[torch.Tensor]:
    """Draw the token losses of each sample; longer samples have smaller losses."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 40, (num_samples,), generator=draw).tolist()
    return [torch.rand(length, generator=draw) * 2 + 30 / length for length in lengths]


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each evaluation of the case; return the result, and the requested batches."""
    return [_evaluate(learner, **each) for each in case["evaluations"]]


def _evaluate(learner: ModuleType, seed: int, num_samples: int, batch_size: int) -> dict[str, Any]:
    samples = make_samples(seed, num_samples)
    batches: list[list[int]] = []

    def token_losses(indices: Any) -> torch.Tensor:
        batch = [int(index) for index in indices]
        batches.append(batch)
        return torch.cat([samples[index] for index in batch]) if batch else torch.zeros(0)

    found = learner.evaluate(token_losses, num_samples, batch_size)
    kind = "" if isinstance(found, float | int) else type(found).__name__
    return {"loss": float(found), "kind": kind, "batches": batches}

"""Run steps on tensors of every shape, and three steps on one weight."""

import random
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SHAPES = ((), (1,), (5,), (4, 3), (2, 3, 4), (0, 3))


def make_cases(seed: int) -> list[tuple[list[Tensor], list[Tensor | None], float]]:
    """Draw several cases of weights, gradients and a learning rate; one gradient of each is None."""
    generator, numbers = torch.Generator().manual_seed(seed), random.Random(seed)
    cases = []
    for dtype in (torch.float32, torch.float64):
        weights = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
        gradients: list[Tensor | None] = [torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
        gradients[numbers.randrange(1, len(SHAPES) - 1)] = None
        cases.append((weights, gradients, numbers.uniform(0.01, 0.4)))
    return [*cases, ([], [], 0.1)]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for weights, gradients, learning_rate in make_cases(case["seed"]):
        new, error = None, ""
        try:
            new = learner.descend(weights, gradients, learning_rate)
        except TypeError as caught:
            if None not in gradients:
                raise
            error = str(caught)
        found.append({"new": new, "weights": weights, "gradients": gradients, "error": error})
    return {"cases": found, "alone": without_none(learner, case["seed"]), "three": three_steps(learner)}


def without_none(learner: ModuleType, seed: int) -> Any:
    """Return the first case, with a gradient for each weight."""
    weights, _, learning_rate = make_cases(seed)[0]
    return learner.descend(weights, [weight.clone() for weight in weights], learning_rate)


def three_steps(learner: ModuleType) -> Any:
    weights = [torch.tensor(3.0)]
    for _ in range(3):
        weights = learner.descend(weights, [2 * weights[0]], 0.1)
    return weights[0]

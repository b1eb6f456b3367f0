"""Take eight steps with several weights in turn, with gradients of very different sizes."""

import random
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

NUM_STEPS = 8
SHAPES = ((4, 3), (5,), ())


def make_settings(seed: int) -> list[dict[str, Any]]:
    """Draw settings for two runs: the usual eps, and one so large that its place shows. The betas are unusual."""
    numbers = random.Random(seed)
    betas = (numbers.uniform(0.6, 0.75), numbers.uniform(0.85, 0.95))
    common = {"lr": numbers.uniform(0.02, 0.06), "weight_decay": numbers.uniform(0.2, 0.5), "betas": betas}
    return [common | {"eps": 1e-8}, common | {"eps": numbers.uniform(0.3, 0.6)}]


def make_weights(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) + 1.0 for shape in SHAPES]


def make_gradients(seed: int) -> list[list[Tensor]]:
    """Draw a gradient for each step and weight; the columns of the first have sizes 1000, 1 and, at first, 0.

    In the last steps the second weight has small gradients, so that its mean of squares falls.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    steps = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(NUM_STEPS)]
    for number, gradients in enumerate(steps):
        gradients[0] *= torch.tensor([1000.0, 1.0, 0.0 if number < 2 else 1e-3])
        gradients[1] *= 1.0 if number < 4 else 1e-2
    return steps


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return the weights after each step, by run and weight, and the gradients after it."""
    runs = []
    for settings in make_settings(case["seed"]):
        weights, states = make_weights(case["seed"]), [{} for _ in SHAPES]
        buffers = [torch.zeros(shape) for shape in SHAPES]  # the same tensors hold the gradients of every step
        run: list[dict[str, Any]] = []
        for gradients in make_gradients(case["seed"]):
            for weight, buffer, gradient, state in zip(weights, buffers, gradients, states, strict=True):
                buffer.copy_(gradient)
                learner.adamw_step(weight, buffer, state, **settings)
            run.append({"weights": [w.clone() for w in weights], "gradients": [b.clone() for b in buffers]})
        runs.append(run)
    return runs

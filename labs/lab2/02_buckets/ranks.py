"""Call average_gradients on models whose gradients are known."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a case

TYPES = {"float32": torch.float32, "float16": torch.float16}


def gradients(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    """Return a rank's gradients, for each parameter in the model's order."""
    generator = torch.Generator().manual_seed(case["seed"] * 101 + rank)
    return [torch.randn(shape, generator=generator).to(TYPES[dtype]) for shape, dtype in case["parameters"]]


def make_model(case: dict[str, Any], rank: int) -> torch.nn.Module:
    model = torch.nn.Module()
    for number, gradient in enumerate(gradients(case, rank)):
        parameter = torch.nn.Parameter(torch.zeros_like(gradient), requires_grad=number not in case["frozen"])
        model.register_parameter(f"p{number}", parameter)
        if parameter.requires_grad and not (number in case["unused"] and rank == 1):
            parameter.grad = gradient
    if case["tied"]:
        model.register_parameter("tied", model.p0)
    return model


def work(learner: ModuleType, cases: list[dict[str, Any]]) -> Any:
    found = []
    for case in cases["cases"]:
        model = make_model(case, dist.get_rank())
        learner.average_gradients(model, case["bucket_bytes"])
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
        found.append([p.grad for p in model.parameters()])
    return found

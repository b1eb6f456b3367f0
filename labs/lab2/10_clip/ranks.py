"""Clip known gradients of models with a few parameters."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist


def gradients(case: dict[str, Any], rank: int) -> list[torch.Tensor]:
    if "fixed" in case:
        return [torch.tensor(case["fixed"][rank])]
    generator = torch.Generator().manual_seed(case["seed"] * 17 + rank)
    factor = case["factors"][rank]
    return [factor * size * torch.randn(shape, generator=generator) for shape, size in case["parameters"]]


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        model = torch.nn.Module()
        for number, gradient in enumerate(gradients(case, dist.get_rank())):
            parameter = torch.nn.Parameter(torch.zeros_like(gradient))
            parameter.grad = gradient
            model.register_parameter(f"p{number}", parameter)
        norm = learner.reduce_and_clip(model, case["max_norm"])
        returned = None if norm is None else float(norm)
        found.append({"norm": returned, "gradients": [p.grad for p in model.parameters()]})
    return found

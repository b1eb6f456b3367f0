"""Clip known gradients of a model whose parameters are cut into shards, except the copies."""

import math
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

COPIES = {"norm.weight", "norm.bias", "idle.bias"}
"""Parameters that are whole on every rank, in cases that have them."""

NO_GRADIENT = {"frozen.weight", "idle.weight", "idle.bias"}
"""One parameter is frozen; the idle layer was not used in this step."""


def gradients(case: dict[str, Any]) -> dict[str, Tensor]:
    """Return the flattened gradients of the whole model, without those that are None."""
    if "fixed" in case:
        return {name: torch.tensor(values) for name, values in case["fixed"].items()}
    generator = torch.Generator().manual_seed(case["seed"])
    found = {}
    for name, shape in case["shapes"].items():
        gradient = torch.randn(math.prod(shape), generator=generator) * case["scale"].get(name, 0.1)
        for rank in range(len(case["shares"])):
            gradient[bounds(case, name, rank)] *= case["by_rank"][rank]
        found[name] = gradient
    return {name: gradient for name, gradient in found.items() if name not in NO_GRADIENT}


def numel_of(case: dict[str, Any], name: str) -> int:
    return len(case["fixed"][name]) if "fixed" in case else math.prod(case["shapes"][name])


def bounds(case: dict[str, Any], name: str, rank: int) -> slice:
    """Return a rank's part of a flattened parameter. The parts have the ratio of the case's `shares`."""
    numel, shares = numel_of(case, name), case["shares"]
    return slice(numel * sum(shares[:rank]) // sum(shares), numel * sum(shares[: rank + 1]) // sum(shares))


def local(case: dict[str, Any], rank: int) -> dict[str, Tensor]:
    """Return the gradients that a rank holds."""
    return {
        name: gradient.clone() if name in COPIES else gradient[bounds(case, name, rank)].clone()
        for name, gradient in gradients(case).items()
    }


def make_model(case: dict[str, Any], rank: int) -> nn.Module:
    """Create a model with this rank's shards. The head has the embedding's weight."""
    model, grads = nn.Module(), local(case, rank)
    for name in case["fixed"] if "fixed" in case else case["shapes"]:
        layer, kind = name.split(".")
        if not hasattr(model, layer):
            model.add_module(layer, nn.Module())
        part = slice(0, numel_of(case, name)) if name in COPIES else bounds(case, name, rank)
        parameter = nn.Parameter(torch.zeros(part.stop - part.start), requires_grad=name != "frozen.weight")
        if name in grads and (parameter.numel() or case["empty_has_grad"]):
            parameter.grad = grads[name]
        model.get_submodule(layer).register_parameter(kind, parameter)
    if "fixed" not in case:
        model.add_module("head", nn.Module())
        model.get_submodule("head").register_parameter("weight", model.get_submodule("embed").weight)
    return model


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        model = make_model(case, dist.get_rank())
        copies = {name for name, _ in model.named_parameters() if name in COPIES}
        norm = learner.clip_grad_norm(model, copies, case["max_norm"])
        grads = {name: p.grad for name, p in model.named_parameters()}
        found.append({"norm": None if norm is None else float(norm), "gradients": grads})
    return found

"""Three steps of training with the learner's Overlap."""

from collections import deque
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

# Elements of all-reduces that only this file calls; they mark the end of a backward, or of a step.
BACKWARD, STEP = 251, 252
LR = 0.5


def make_model(case: dict[str, Any]) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(case["seed"])
    layers = []
    for _ in range(case["num_layers"]):
        layer = torch.nn.Linear(case["width"], case["width"])
        for p in layer.parameters():
            p.data = torch.randn(p.shape, generator=generator) / case["width"] ** 0.5
            p.grad = torch.zeros_like(p)
        layers += [layer, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


def make_buckets(model: torch.nn.Module, buckets: list[list[int]]) -> list[list[torch.nn.Parameter]]:
    parameters = list(model.parameters())
    return [[parameters[n] for n in bucket] for bucket in buckets]


def batch(case: dict[str, Any], rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * rank + step + 1)
    return torch.randn(5, case["width"], generator=generator)


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs.roll(1, 1)).square().mean()


def mark_backward(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
    """Mark the point of backward at which all gradients of later layers exist."""
    output.register_hook(lambda _: dist.all_reduce(torch.zeros(BACKWARD, dtype=torch.int8)))


def num_kept(root: Any) -> int:
    """Count the tensors and work objects that an object of the learner's keeps."""
    seen, found, coming = set(), 0, [root]
    while coming:
        one = coming.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor) or hasattr(one, "wait"):
            found += 1
        elif isinstance(one, dict):
            coming += one.values()
        elif isinstance(one, list | tuple | set | deque):
            coming += one
        elif type(one).__module__ == type(root).__module__:
            coming += getattr(one, "__dict__", {}).values()
    return found


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank = dist.get_rank()
    model = make_model(case)
    overlap = learner.Overlap(make_buckets(model, case["buckets"]))
    if not case["rank 0 first"]:
        model[0].register_forward_hook(mark_backward)
    steps, kept = [], []
    for step in range(3):
        loss = loss_of(model, batch(case, rank, step))
        if case["rank 0 first"] and rank == 1:
            dist.recv(torch.zeros(1), 0)  # begin only after rank 0 has finished its backward
        loss.backward()
        if case["rank 0 first"] and rank == 0:
            dist.send(torch.zeros(1), 1)
        overlap.finish()
        steps.append([p.grad.clone() for p in model.parameters()])
        for p in model.parameters():
            p.data -= LR * p.grad
            p.grad.zero_()
        kept.append(num_kept(overlap))
        dist.all_reduce(torch.zeros(STEP, dtype=torch.int8))
    return {"gradients": steps, "weights": list(model.parameters()), "kept": kept}

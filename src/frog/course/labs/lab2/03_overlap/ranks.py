"""Three steps of training with the learner's Overlap."""

from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

# Elements of all-reduces that only this file makes: in the list of calls they end a backward, or a step.
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


def make_buckets(model: torch.nn.Module, sizes: list[int]) -> list[list[torch.nn.Parameter]]:
    parameters = list(model.parameters())[::-1]
    buckets = []
    for size in sizes:
        buckets.append(parameters[:size])
        parameters = parameters[size:]
    return buckets


def batch(case: dict[str, Any], rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * rank + step + 1)
    return torch.randn(5, case["width"], generator=generator)


def loss_of(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return (model(inputs) - inputs.roll(1, 1)).square().mean()


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank = dist.get_rank()
    model = make_model(case)
    overlap = learner.Overlap(make_buckets(model, case["buckets"]))
    steps = []
    for step in range(3):
        loss = loss_of(model, batch(case, rank, step))
        if case["rank 0 first"] and rank == 1:
            dist.recv(torch.zeros(1), 0)  # begin only when rank 0 has ended its backward
        loss.backward()
        if not case["rank 0 first"]:
            dist.all_reduce(torch.zeros(BACKWARD, dtype=torch.int8))
        elif rank == 0:
            dist.send(torch.zeros(1), 1)
        overlap.finish()
        steps.append([p.grad.clone() for p in model.parameters()])
        for p in model.parameters():
            p.data -= LR * p.grad
            p.grad.zero_()
        dist.all_reduce(torch.zeros(STEP, dtype=torch.int8))
    return {"gradients": steps, "weights": list(model.parameters())}

"""Give each rank its pieces of a few parameters, and take steps with known gradients."""

import itertools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

RATE, MOMENTUM, STEPS = 0.2, 0.9, 3
MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a step


@dataclass
class Piece:
    """One rank's part of a parameter, with the fields of the learner's class."""

    shape: list[int]
    counts: list[int]
    weight: Tensor
    grad: Tensor
    momentum: Tensor


def numel(shape: list[int]) -> int:
    return torch.Size(shape).numel()


def counts_by_parameter(case: dict[str, Any], size: int) -> list[list[int]]:
    """Return how many elements of each parameter each rank holds."""
    if case["layout"] == "rows":  # as fully_shard does
        return [rows_of(shape, size) for shape in case["shapes"]]
    ends = list(itertools.accumulate(map(numel, case["shapes"]), initial=0))  # as ZeRO does: one vector, cut evenly
    part = -(-ends[-1] // size)
    cuts = [(rank * part, (rank + 1) * part) for rank in range(size)]
    pairs = itertools.pairwise(ends)
    return [[max(0, min(end, high) - max(start, low)) for low, high in cuts] for start, end in pairs]


def rows_of(shape: list[int], size: int) -> list[int]:
    rows = [len(part) for part in torch.empty(shape[0]).chunk(size)]
    return [num * numel(shape[1:]) for num in rows] + [0] * (size - len(rows))


def weights(case: dict[str, Any]) -> list[Tensor]:
    """Return the whole parameters before the first step, flattened."""
    generator = torch.Generator().manual_seed(case["seed"])
    return [torch.randn(numel(shape), generator=generator) for shape in case["shapes"]]


def gradients(case: dict[str, Any], step: int) -> list[Tensor]:
    """Return the mean gradients of a step, flattened. A matrix that no sample used in a step has zeros."""
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * (step + 1))
    found = [torch.randn(numel(shape), generator=generator) for shape in case["shapes"]]
    if step == case["quiet_step"]:
        found[case["quiet"]].zero_()
    return found


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    rank = dist.get_rank()
    counts = counts_by_parameter(case, dist.get_world_size())

    def mine(whole: list[Tensor]) -> list[Tensor]:
        return [one.split(some)[rank].clone() for one, some in zip(whole, counts, strict=True)]

    kept = mine(weights(case))
    pieces = [
        Piece(shape, some, weight, torch.zeros_like(weight), torch.zeros_like(weight))
        for shape, some, weight in zip(case["shapes"], counts, kept, strict=True)
    ]
    means, steps = [piece.momentum for piece in pieces], []
    for step in range(STEPS):
        for piece, grad in zip(pieces, mine(gradients(case, step)), strict=True):
            piece.grad = grad
        learner.muon_step(pieces, RATE, MOMENTUM)
        dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
        steps.append(
            {
                "weights": [weight.clone() for weight in kept],
                "rebound": [piece.weight is not weight for piece, weight in zip(pieces, kept, strict=True)],
                "momentum rebound": [piece.momentum is not mean for piece, mean in zip(pieces, means, strict=True)],
                "momentum": [piece.momentum.clone() for piece in pieces],
            }
        )
    return steps

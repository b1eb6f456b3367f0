"""Run the learner's three kinds of attention on this rank's part of a sequence, forward and backward."""

import itertools
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

KINDS = ("gather", "ring", "head")
FORWARD, BACKWARD = 251, 252  # elements of all-reduces that only this file calls, before each pass
BATCH, WIDTH = 2, 4


def sequence(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v and the gradient of the result, of the whole sequence.

    A case may have a shift: a number by which all scores are larger, which changes no result.
    """
    generator = torch.Generator().manual_seed(case["seed"])
    shape = (BATCH, case["heads"], case["length"], WIDTH)
    q, k, v, gradient = (torch.randn(shape, generator=generator) for _ in range(4))
    q, k = 1.5 * q, 1.5 * k
    if shift := case.get("shift"):
        q[..., 0] = (abs(shift) * WIDTH**0.5) ** 0.5
        k[..., 0] = q[0, 0, 0, 0] * (1 if shift > 0 else -1)
    return q, k, v, gradient


def positions(learner: ModuleType, case: dict[str, Any], size: int) -> list[list[int]]:
    """Return each rank's positions as the learner divides them."""
    found = []
    for rank in range(size):
        try:
            found.append(torch.as_tensor(learner.positions_of(case["length"], rank, size)).flatten().tolist())
        except Exception as error:
            error.add_note(f"(positions_of({case['length']}, {rank}, {size}))")
            raise
    return found


def run(learner: ModuleType, case: dict[str, Any], alone: Any) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = positions(learner, case, size)
    found: dict[str, Any] = {"positions": parts}
    if sorted(itertools.chain(*parts)) != list(range(case["length"])):
        return found
    for kind in KINDS:
        *own, gradient = (x[:, :, parts[rank]] for x in sequence(case))
        q, k, v = (x.clone().requires_grad_() for x in own)
        dist.all_reduce(torch.zeros(FORWARD, dtype=torch.int8), group=alone)
        try:
            y = getattr(learner, f"{kind}_attention")(q, k, v, case["length"])
            dist.all_reduce(torch.zeros(BACKWARD, dtype=torch.int8), group=alone)
            if isinstance(y, Tensor) and y.shape == gradient.shape and y.requires_grad:
                y.backward(gradient)
        except Exception as error:
            error.add_note(f"({kind}_attention of {case['heads']} heads and {case['length']} positions)")
            raise
        found[kind] = [y, q.grad, k.grad, v.grad]
    return found


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    return [run(learner, one, alone) for one in case["cases"]]

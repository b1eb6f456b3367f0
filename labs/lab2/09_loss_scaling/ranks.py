"""Train a layer whose backward runs through float16, as under autocast, with steps that overflow on purpose."""

import random
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

RATE, MAX_NORM, WIDTH, OUT = 100.0, 2e-3, 5, 4
INPUT = 1e5
SMALL = 2e-8  # gradients of this size are lost in float16
LARGE = 3e3  # ... and of this size overflow once they are scaled


class Half(torch.autograd.Function):
    """The identity, with a gradient in float16."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.half().float()


def make_model(case: dict[str, Any]) -> torch.nn.Linear:
    generator = torch.Generator().manual_seed(case["seed"])
    model = torch.nn.Linear(WIDTH, OUT)
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator)
    return model


def loss_of(model: torch.nn.Linear, case: dict[str, Any], step: int, rank: int) -> torch.Tensor:
    """Compute a loss. case["overflows"][step] has, for each rank, 0 or the sign with which its gradient overflows.

    1 overflows in both parameters, 2 in the weight alone, 3 in the bias alone.
    """
    generator = torch.Generator().manual_seed(case["seed"] * 97 + 13 * step + rank)
    x_BD = INPUT * torch.rand(3, WIDTH, generator=generator)
    slope_BV = torch.randn(3, OUT, generator=generator) * (SMALL if step % 2 else SMALL / 8)
    overflow = case["overflows"][step][rank]
    large = LARGE if overflow > 0 else -LARGE
    if abs(overflow) == 1:
        slope_BV = torch.full((3, OUT), large)
    y_BV = torch.nn.functional.linear(x_BD, model.weight, model.bias * INPUT)  # both gradients have the same size
    loss = (Half.apply(y_BV) * slope_BV).sum()
    if abs(overflow) > 1:
        loss = loss + (Half.apply((model.weight, model.bias)[abs(overflow) - 2]) * large).sum()
    return loss


def draw_case(seed: int, size: int) -> dict[str, Any]:
    """Draw overflows on one rank, on both with two signs, and on another, with runs of good steps between them.

    The first run is long enough for two growths. In a world of three the scale grows beyond the float16 range.
    """
    draw = random.Random(seed)
    none, interval = [0] * size, draw.randint(3, 4)
    one, other = draw.sample(range(size), 2)
    alone = [2 if rank == one else 0 for rank in range(size)]
    opposed = [1 if rank == one else -1 if rank == other else 0 for rank in range(size)]
    bias = [-3 if rank == other else 0 for rank in range(size)]
    back = [3 if rank == one else 0 for rank in range(size)]
    weight = [-2 if rank == other else 0 for rank in range(size)]
    rows = [2 * interval + 1, draw.randint(1, interval - 1), interval - 1, 1, 1, 2]
    ends = [alone, opposed, bias, back, weight, none]
    overflows = [case for row, end in zip(rows, ends, strict=True) for case in [none] * row + [end]]
    scale = 2.0**15 if size == 3 else 2.0 ** draw.randint(9, 12)
    return {"seed": seed, "overflows": overflows, "interval": interval, "scale": scale}


def work(learner: ModuleType, cases: dict[str, Any]) -> Any:
    found = []
    for case in cases["cases"]:
        model, scaler = make_model(case), learner.LossScaler(case["scale"], case["interval"])
        steps = []
        for step in range(len(case["overflows"])):
            loss = loss_of(model, case, step, dist.get_rank())
            moved = learner.train_step(model, scaler, loss, MAX_NORM, RATE)
            weights = torch.cat([p.detach().flatten() for p in model.parameters()])
            steps.append({"moved": bool(moved), "scale": float(scaler.scale), "weights": weights})
        found.append(steps)
    return found

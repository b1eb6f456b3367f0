"""Take steps with the learner's optimizer, with known gradients, and measure the memory that it holds."""

import gc
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from frog.learn.grader.live_bytes import LiveBytes

MARK = 251  # elements of an all-reduce that only this file calls; it marks the end of a case
STEPS, LR = 3, 0.05


def make_model(case: dict[str, Any]) -> nn.Module:
    """case["parameters"]: (name, shape, "trained", "frozen" or "unused"). The first may be tied to a second name."""
    generator, model = torch.Generator().manual_seed(case["seed"]), nn.Module()
    for name, shape, kind in case["parameters"]:
        value = torch.randn(shape, generator=generator)
        model.register_parameter(name, nn.Parameter(value, requires_grad=kind != "frozen"))
    if case["tied"]:
        model.register_parameter("tied", model.get_parameter(case["parameters"][0][0]))
    return model


def gradients(case: dict[str, Any], step: int) -> list[Tensor | None]:
    """Return each parameter's gradient. Those of matrices are not contiguous; that of a scalar is as small as Adam's
    eps, so that a factor shows.
    """
    generator = torch.Generator().manual_seed(case["seed"] + 1000 * step + 1)
    drawn = [torch.randn(shape[::-1], generator=generator) for _, shape, _ in case["parameters"]]
    drawn = [g.permute(list(reversed(range(g.dim())))) if g.dim() else torch.tensor(1e-8 * (step + 1)) for g in drawn]
    return [g if kind == "trained" else None for g, (_, _, kind) in zip(drawn, case["parameters"], strict=True)]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [run(learner, one) for one in case["cases"]]


def run(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    model, steps, live = make_model(case), [], LiveBytes()
    with live:
        optimizer = learner.ShardedAdam(model, LR)
    for step in range(STEPS):
        for p, gradient in zip(model.parameters(), gradients(case, step), strict=True):
            p.grad = gradient
        with live:
            optimizer.step()
        steps.append([p.detach().clone() for p in model.parameters()])
    model.zero_grad()
    gc.collect()
    held = live.settled(case["most"], without=model.parameters())
    dist.all_reduce(torch.zeros(MARK, dtype=torch.int8))
    return {"steps": steps, "held": held}

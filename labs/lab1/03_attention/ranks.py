"""Queries, keys and values of several shapes, a token that is replaced, and gradients."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SHAPES = ((2, 4, 4, 5, 8), (1, 4, 2, 7, 6), (2, 6, 1, 4, 3), (1, 2, 2, 1, 4), (3, 2, 2, 2, 2), (1, 6, 3, 9, 4))
"""B, H, K, T, C."""
LARGE = len(SHAPES)
"""The place of one case more, with scores of some hundreds; the first token of each text has a very negative one."""
REPLACED = 3
"""The place of the token whose key and value are others the second time."""


def make_inputs(seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    cases = [
        (
            torch.randn(B, H, T, C, generator=generator) * 2,
            torch.randn(B, K, T, C, generator=generator),
            torch.randn(B, K, T, C, generator=generator),
        )
        for B, H, K, T, C in SHAPES
    ]
    q, k, v = (torch.randn(2, heads, 6, 4, generator=generator) for heads in (2, 1, 1))
    q *= 100 / q.norm(dim=-1, keepdim=True)
    k *= 8 / k.norm(dim=-1, keepdim=True)
    k[:, :, 0] = -0.08 * q[:, :1, 0]
    return [*cases, (q, k, v)]


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    found = []
    for q, k, v in make_inputs(case["seed"]):
        y = learner.attention(q, k, v)
        found.append({"y": y, "q": q, "k": k, "v": v})
    seed = case["seed"]
    return {
        "cases": found,
        "replaced": replaced(learner, seed),
        "ones": ones(learner, seed),
        "gradients": gradients(learner, seed),
    }


def replaced(learner: ModuleType, seed: int) -> Any:
    """The first output again, after one token's key and value became others."""
    q, k, v = make_inputs(seed)[0]
    k[:, :, REPLACED], v[:, :, REPLACED] = -k[:, :, REPLACED] + 1, -v[:, :, REPLACED] + 1
    return learner.attention(q, k, v)


def ones(learner: ModuleType, seed: int) -> Any:
    """The output where every value is 1: what each token's weights add up to."""
    q, k, v = make_inputs(seed)[0]
    return learner.attention(q, k, torch.ones_like(v))


def gradients(learner: ModuleType, seed: int) -> list[Tensor | None] | None:
    """Of a sum over the output with random weights, or None if the output does not know where it comes from."""
    inputs = [part.requires_grad_() for part in make_inputs(seed)[1]]
    y = learner.attention(*[part * 1.0 for part in inputs])
    if not y.requires_grad:
        return None
    return list(torch.autograd.grad((y * output_weights(y.shape, seed)).sum(), inputs, allow_unused=True))


def output_weights(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1))

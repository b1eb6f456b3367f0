"""Queries, keys and values of several shapes, a token that is replaced, and gradients."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

SHAPES = ((2, 4, 4, 5, 8), (1, 4, 2, 7, 6), (2, 6, 1, 4, 3), (1, 2, 2, 1, 4), (3, 2, 2, 2, 2), (1, 6, 3, 9, 4))
"""B, H, K, T, C."""
LARGE = len(SHAPES)
"""Index of an extra case with scores of several hundred; the first token of each text has a very negative one."""
REPLACED = 3
"""Position of the token whose key and value change for the second call."""


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
    """Compute the first output again, after one token's key and value have changed."""
    q, k, v = make_inputs(seed)[0]
    k[:, :, REPLACED], v[:, :, REPLACED] = -k[:, :, REPLACED] + 1, -v[:, :, REPLACED] + 1
    return learner.attention(q, k, v)


def ones(learner: ModuleType, seed: int) -> Any:
    """Compute the output with all values 1: the sum of each token's weights."""
    q, k, v = make_inputs(seed)[0]
    return learner.attention(q, k, torch.ones_like(v))


def gradients(learner: ModuleType, seed: int) -> list[Tensor | None] | None:
    """Return the gradients of a randomly weighted sum of the output, or None if it has no graph."""
    inputs = [part.requires_grad_() for part in make_inputs(seed)[1]]
    y = learner.attention(*[part * 1.0 for part in inputs])
    if not y.requires_grad:
        return None
    return list(torch.autograd.grad((y * output_weights(y.shape, seed)).sum(), inputs, allow_unused=True))


def output_weights(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 1))

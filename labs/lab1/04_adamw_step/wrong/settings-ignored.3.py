"""A step of AdamW, on one weight."""

import torch
from torch import Tensor


def adamw_step(
    weight: Tensor,
    gradient: Tensor,
    state: dict,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> None:
    if not state:
        state.update(t=0, m=torch.zeros_like(weight), v=torch.zeros_like(weight))
    state["t"] += 1
    b1, b2 = betas
    state["m"] = b1 * state["m"] + (1 - b1) * gradient
    state["v"] = b2 * state["v"] + (1 - b2) * gradient**2
    m, v = state["m"] / (1 - b1 ** state["t"]), state["v"] / (1 - b2 ** state["t"])
    weight.mul_(1 - lr * 0.01)
    weight.sub_(lr * m / (v.sqrt() + eps))

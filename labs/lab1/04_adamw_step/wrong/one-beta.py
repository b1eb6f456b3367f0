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
    """Change the weight in place by one step of AdamW. Do not change the gradient.

    `state` belongs to this weight. It is empty before the first step; the next step gets what you store in it.

    Shapes:  weight and gradient have the same shape, which can be any.
    """
    if not state:
        state.update(step=0, m=torch.zeros_like(weight), v=torch.zeros_like(weight))
    state["step"] += 1
    beta1, beta2 = betas
    m, v = state["m"], state["v"]
    m.mul_(beta1).add_(gradient, alpha=1 - beta1)
    v.mul_(beta1).add_(gradient.square(), alpha=1 - beta1)
    corrected_m = m / (1 - beta1 ** state["step"])
    corrected_v = v / (1 - beta1 ** state["step"])
    weight.mul_(1 - lr * weight_decay)
    weight.sub_(lr * corrected_m / (corrected_v.sqrt() + eps))

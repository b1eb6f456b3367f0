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
    raise NotImplementedError("fill in adamw_step")

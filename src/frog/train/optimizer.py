"""AdamW over the flat parameters, and its learning rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from frog.config import OptimizerConfig
from frog.parallel import FlatParameters


def build_optimizer(flat: FlatParameters, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone. Its state exists from the start, so that it can be loaded into.

    Source:  Loshchilov and Hutter 2019; the split by shape is that of GPT-2's and Llama's published trainings.
    """
    groups = [
        {"params": [flat.decayed], "weight_decay": config.weight_decay},
        {"params": [flat.plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )
    for parameter in (flat.decayed, flat.plain):
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
        }
    return optimizer


def named_state(optimizer: torch.optim.Optimizer, flat: FlatParameters) -> dict[str, Tensor]:
    """The optimizer's state by parameter, as views: `optimizer/exp_avg/<name>` and the like, and its step counts."""
    decayed, plain = optimizer.state[flat.decayed], optimizer.state[flat.plain]
    moments = {
        f"optimizer/{moment}/{name}": flat.view_parts(decayed[moment], plain[moment], name)
        for moment in ("exp_avg", "exp_avg_sq")
        for name in flat.spans
    }
    return {**moments, "optimizer/step/decayed": decayed["step"], "optimizer/step/plain": plain["step"]}


def learning_rate(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """The rate of step `step` (the first is 1): up in a line over the warm-up, then down a cosine to the minimum."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    low, high = config.min_learning_rate, config.learning_rate
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

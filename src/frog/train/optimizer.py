"""AdamW over what a strategy lets a rank update, and its learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence

import torch
from torch import nn

from frog.config import OptimizerConfig


class _Eager(torch.optim.Optimizer):
    """An optimizer of torch's without torch's compiler.

    torch marks these methods as not to be compiled when they are first called, and imports the compiler for that: 800
    modules, more than a second of every rank's start. Here is what they are without the mark.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class EagerAdamW(_Eager, torch.optim.AdamW):
    """torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class EagerSGD(_Eager, torch.optim.SGD):
    """torch's SGD."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


def build_optimizer(
    config: OptimizerConfig, decayed: Sequence[nn.Parameter], plain: Sequence[nn.Parameter]
) -> torch.optim.AdamW:
    """AdamW with decay on matrices alone. Its state exists from the start, so that it can be loaded into.

    Source:  Loshchilov and Hutter 2019; the split by shape is that of GPT-2's and Llama's published trainings.
    """
    groups = [
        {"params": list(params), "weight_decay": decay}
        for params, decay in ((decayed, config.weight_decay), (plain, 0.0))
        if params
    ]
    optimizer = EagerAdamW(
        groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps, fused=True
    )
    for parameter in (*decayed, *plain):
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter.detach()),
            "exp_avg_sq": torch.zeros_like(parameter.detach()),
        }
    return optimizer


def learning_rate(step: int, num_steps: int, config: OptimizerConfig) -> float:
    """The rate of step `step` (the first is 1): up in a line over the warm-up, then down a cosine to the minimum."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, num_steps - config.warmup_steps)
    low, high = config.min_learning_rate, config.learning_rate
    return low + (high - low) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

"""Builds the optimizer of a run file for the tensors that a strategy lets a rank update."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import torch
from torch import Tensor

from frog.core.config import OptimizerConfig
from frog.train.optim.tensors import UpdatedTensor


def build_optimizer(config: OptimizerConfig, tensors: Sequence[UpdatedTensor]) -> torch.optim.Optimizer:
    """Build the optimizer with all its state, so that a checkpoint can be loaded into it."""
    optimizer: torch.optim.Optimizer = import_module(config.entry.module).build(config, tensors)
    begin_states(optimizer, config)
    return optimizer


def begin_states(optimizer: torch.optim.Optimizer, config: OptimizerConfig) -> None:
    """Create a state of zeros for every tensor of the optimizer that has none."""
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            begin_state(optimizer, config, tensor)


def begin_state(optimizer: torch.optim.Optimizer, config: OptimizerConfig, tensor: Tensor) -> None:
    """Create a state of zeros for one tensor, if it has none."""
    if tensor in optimizer.state:
        return
    state = {name: torch.zeros_like(tensor.detach()) for name in config.state}
    if config.entry.counts_steps:
        group = optimizer.param_groups[0]
        device = tensor.device if group.get("fused") or group.get("capturable") else None
        state = {"step": torch.zeros((), dtype=torch.float32, device=device), **state}
    if state:
        optimizer.state[tensor] = state

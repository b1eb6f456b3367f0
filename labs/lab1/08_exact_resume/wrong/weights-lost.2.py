"""Capture and restore everything that the next step depends on."""

import copy
from typing import Any

import torch
from torch import nn


def capture(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, step: int) -> dict[str, Any]:
    """Return everything needed to resume after `step`. Training continues, and must not be able to change the result.

    Use only dicts, lists, tensors, numbers and strings, in memory: no objects with code, no files. `loader.epoch` and
    `loader.index` are numbers that say which batch comes next; dropout draws from torch's random numbers.
    """
    return {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "loader": [loader.epoch, loader.index],
        "step": step,
        "random": torch.get_rng_state(),
    }


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    """Restore new objects, of the same types and sizes, to the state of those passed to `capture`; return the step.

    The random numbers must also continue from where they were.
    """
    model = copy.deepcopy(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.epoch, loader.index = state["loader"]
    torch.set_rng_state(state["random"])
    return state["step"]

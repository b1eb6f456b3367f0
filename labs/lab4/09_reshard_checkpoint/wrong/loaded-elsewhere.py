"""Save the state of sharded training, and load it in a world of any size."""

import copy
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

writers = ThreadPoolExecutor(max_workers=1)


def state_of(model: nn.Module, optimizer: Optimizer, step: int) -> dict[str, Any]:
    """Return everything that training needs to continue: the model's state, the optimizer's, and the step.

    model:  sharded by fully_shard. Its tensors stay as they are: DTensors, of which this rank holds a shard.
    """
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "step": step}


def save(model: nn.Module, optimizer: Optimizer, step: int, folder: str) -> None:
    """Save the training state in a folder. Every rank calls this, and writes its own shards."""
    dcp.save(state_of(model, optimizer, step), checkpoint_id=folder)


def load(model: nn.Module, optimizer: Optimizer, folder: str) -> int:
    """Load the training state into the model and the optimizer, in place, and return the step.

    model, optimizer:  new, and sharded over a world that may have another size than the one that saved.
    """
    state = state_of(model, optimizer, step=0)
    copied = copy.deepcopy(state)
    dcp.load(copied, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=copied["optimizer"])
    return copied["step"]


def start_saving(model: nn.Module, optimizer: Optimizer, step: int, folder: str) -> "Future[Any]":
    """Begin to save the current training state, and return; the future has a result when it is saved.

    Training continues meanwhile: the optimizer changes weights and moments in place.
    """
    state = copy.deepcopy(state_of(model, optimizer, step))
    return writers.submit(dcp.save, state, checkpoint_id=folder)

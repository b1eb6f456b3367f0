"""A training run that can be killed and restarted."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def train(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    get_batch: Callable[[int], tuple[Tensor, Tensor]],
    num_steps: int,
    every: int,
) -> list[float]:
    """Train up to step `num_steps`; return the loss of each step of the run, from the first one on.

    `get_batch(step)`, with step counted from 1, returns inputs (B, T) and labels (B, T). model(inputs) returns scores
    (B, T, V); the loss is their mean cross-entropy. The model may come from an evaluation, in eval mode; take the
    steps in training mode.

    Save a checkpoint in `folder`, which exists, after every `every` steps and after the last. If an earlier call
    left one there, resume from the latest, without a single bit of difference to a run that was never killed.
    """
    path, losses = folder / "latest.pt", []
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        losses = state["losses"]
    while len(losses) < num_steps:
        inputs, labels = get_batch(len(losses) + 1)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % every == 0 or len(losses) == num_steps:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"random": torch.get_rng_state(), "losses": losses}
            torch.save(state, folder / "latest.tmp")
            os.replace(folder / "latest.tmp", path)
    return losses

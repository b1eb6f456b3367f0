"""Loss scaling for float16, in a world of several ranks."""

import torch
import torch.distributed as dist


class LossScaler:
    """The factor for the loss and the rules for changing it; modelled on torch.amp.GradScaler.

    scale:            the current factor.
    growth_interval:  this many good steps in a row double it. An overflow halves it immediately.
    """

    def __init__(self, scale: float = 65536.0, growth_interval: int = 2000) -> None:
        self.scale = scale
        self.growth_interval = growth_interval
        self.good_steps = 0  # in a row, since the scale last changed

    def update(self, overflowed: bool) -> None:
        """Choose the scale for the next step, after a step that overflowed or did not."""
        self.good_steps = 0 if overflowed else self.good_steps + 1
        if overflowed:
            self.scale /= 2
        else:
            self.scale *= 2
            self.good_steps = 0


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every .grad, on every rank, by its mean over all ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def sgd_step(model: torch.nn.Module, rate: float) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad


def train_step(
    model: torch.nn.Module, scaler: LossScaler, loss: torch.Tensor, max_norm: float, rate: float
) -> bool:
    """Take one step on every rank; return whether the weights moved, the same value on all ranks.

    The gradient is the mean over the ranks, with its global norm limited to `max_norm`. If it overflowed on any rank,
    no rank moves. Afterwards no gradient remains, and the scaler has been updated.

    loss:  this rank's unscaled loss. Backward goes through float16; the weights and their .grad are float32.
    """
    (loss * scaler.scale).backward()
    average_gradients(model)
    for p in model.parameters():
        p.grad /= scaler.scale
    overflowed = not all(p.grad.isfinite().all() for p in model.parameters())
    if not overflowed:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        sgd_step(model, rate)
    model.zero_grad()
    scaler.update(overflowed)
    return not overflowed

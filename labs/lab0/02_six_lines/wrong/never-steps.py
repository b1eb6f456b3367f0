"""The training loop in six lines."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def train(
    model: nn.Module,
    data: Iterable[Tensor],
    compute_loss: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
) -> list[float]:
    """Train on each batch once, in order, with one optimizer step per batch.

    `compute_loss` takes the model's output for a batch and returns a tensor with one number.

    -> the loss of each batch as the forward pass computed it, as Python numbers
    """
    losses = []
    for batch in data:
        loss = compute_loss(model(batch))
        loss.backward()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses

"""The loss on held-out text."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the mean loss over all tokens of all batches, as a Python number. The model must not change.

    Switch dropout off, and keep nothing for a backward pass. Batches may differ in size, and can be read only once.

    Shapes:  each batch: inputs (B, T), labels (B, T), -100 where there is nothing to predict; model(inputs) (B, T, V)
    Units:   nats per token
    """
    was_training = model.training
    model.eval()
    total, num_tokens = 0.0, 0
    with torch.no_grad():
        for inputs, labels in batches:
            losses = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
            total += losses.item()
            num_tokens += int((labels != -100).sum())
    return total / num_tokens

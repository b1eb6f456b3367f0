"""The loss on held-out text."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The mean loss over all tokens of all batches, as a Python number. The model is afterwards as it was before.

    Dropout is off, and nothing is kept for a backward pass. Batches may be of different sizes, and can be read once.

    Shapes:  each batch: inputs (B, T), labels (B, T), -100 where nothing is to be predicted; model(inputs) (B, T, V)
    Units:   nats a token
    """
    was_training = model.training
    model.eval()
    total, num_tokens = 0.0, 0
    with torch.no_grad():
        for inputs, labels in batches:
            losses = F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="mean")
            total += losses.item()
            num_tokens += 1
    model.train(was_training)
    return total / num_tokens

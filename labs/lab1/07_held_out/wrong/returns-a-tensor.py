"""The loss on held-out text."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def evaluate(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for inputs, labels in batches:
            total += F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), reduction="sum")
            count += int((labels != -100).sum())
    model.train(was_training)
    return total / count

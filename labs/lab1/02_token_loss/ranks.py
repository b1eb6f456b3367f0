"""Batches with texts of every length, and scores of every size."""

import random
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

IGNORE = -100
SHAPES = ((3, 8, 5), (4, 4, 4), (1, 6, 7), (5, 1, 3), (2, 9, 4))


def make_batches(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return scores and labels by name."""
    generator, numbers = torch.Generator().manual_seed(seed), random.Random(seed)
    batches = {}
    for number, (B, T, V) in enumerate(SHAPES):
        logits = 2 * torch.randn(B, T, V, generator=generator)
        labels = torch.randint(V, (B, T), generator=generator)
        batches[f"whole {number}"] = (logits, labels)
        lengths = [T, *(numbers.randint(1, max(1, T // 2)) for _ in range(B - 1))]
        padded = labels.clone()
        for row, length in enumerate(lengths):
            padded[row, length:] = IGNORE
        batches[f"padded {number}"] = (logits, padded)
    logits, labels = batches["padded 0"]
    batches["large"] = (logits * 500, labels)
    labels = labels.clone()
    labels[0, ::2] = IGNORE
    batches["holes"] = (logits, labels)
    labels = labels.clone()
    labels[1] = IGNORE
    batches["an empty text"] = (logits, labels)
    batches["padding alone"] = (logits, torch.full_like(labels, IGNORE))
    return batches


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return each batch's loss, whether backward can run from it, and the gradient of the scores."""
    found = {}
    for name, (logits, labels) in make_batches(case["seed"]).items():
        logits = logits.clone().requires_grad_()
        loss = learner.token_loss(logits, labels)
        if not isinstance(loss, Tensor):
            found[name] = {"loss": loss, "tensor": False, "backward": False, "gradient": None}
            continue
        if loss.requires_grad and loss.numel() == 1:
            loss.sum().backward()
        found[name] = {"loss": loss.detach(), "tensor": True, "backward": loss.requires_grad, "gradient": logits.grad}
    return found

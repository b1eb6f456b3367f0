"""Evaluate a model with dropout that records how it is called, on one text split into batches in several ways."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

V, T, NUM_TEXTS = 9, 6, 11
CUTS = {"uneven": (4, 4, 3), "one by one": (1,) * 11, "very uneven": (9, 1, 1), "a single last": (5, 5, 1)}


class Model(nn.Module):
    """Two matrices with dropout between them. `seen` has, for each forward pass, its training and autograd flags."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(V, 8, generator=generator))
        self.second = nn.Parameter(torch.randn(8, V, generator=generator))
        self.dropout = nn.Dropout(0.5)
        self.seen: list[list[bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first[inputs]
        scores = self.dropout(hidden) @ self.second
        self.seen.append([self.dropout.training, scores.requires_grad and torch.is_grad_enabled()])
        return scores


def make_text(seed: int) -> tuple[Tensor, Tensor]:
    """Draw inputs and labels of all texts; most are short, and padded."""
    generator = torch.Generator().manual_seed(seed + 1)
    inputs, labels = (torch.randint(V, (NUM_TEXTS, T), generator=generator) for _ in range(2))
    lengths = torch.randint(1, T + 1, (NUM_TEXTS,), generator=generator)
    lengths[0], lengths[-1] = T, 2
    labels[torch.arange(T) >= lengths[:, None]] = -100
    return inputs, labels


def cut(seed: int, sizes: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    inputs, labels = make_text(seed)
    return list(zip(inputs.split(sizes), labels.split(sizes), strict=True))


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Return, for each way to split: the loss, how the model was called, and what changed in it."""
    found = {}
    for place, (name, sizes) in enumerate(CUTS.items()):
        model = Model(case["seed"])
        model.train(place % 2 == 0)
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 0.5)
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        loss = learner.evaluate(model, iter(cut(case["seed"], sizes)))
        found[name] = {
            "loss": loss.detach() if isinstance(loss, Tensor) else loss,
            "before": place % 2 == 0,
            "after": [model.training, model.dropout.training],
            "seen": model.seen,
            "learnable": [weight.requires_grad for weight in model.parameters()],
            "autograd": torch.is_grad_enabled(),
            "gradients": [weight.grad for weight in model.parameters()],
            "weights": [weight.detach() for weight in model.parameters()],
            "expected weights": list(before.values()),
        }
    return found

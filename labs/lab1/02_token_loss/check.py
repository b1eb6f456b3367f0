"""Compare losses with sums over single tokens in float64, and gradients with softmax minus one-hot."""

from typing import Any

import torch
from ranks import IGNORE, make_batches
from torch import Tensor
from torch.nn import functional as F

from frog.learn.grader.grade import Grade

EPS = [*(10.0**-k for k in range(3, 46)), *(getattr(torch.finfo(torch.float32), name) for name in ("eps", "tiny"))]
"""Constants that people add to a probability before they take its logarithm."""


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}).values[0]
    batches = make_batches(grade.seed)
    for name in sorted(batches, key=lambda name: name.split()[0] != "whole"):
        check_batch(grade, name, found[name], *batches[name])
    logits, labels = batches["padded 0"]
    grade.measured("a padded batch", f"{mean(logits, labels):.4f} per token")
    others = beliefs(logits, labels)
    text = f"{others['padding-counts'][0]:.4f} if padding counted, {others['mean-of-means'][0]:.4f} as a mean of means"
    grade.measured("the same batch", text)
    grade.predicted("mean-over-tokens", (10 * 2.0 + 2 * 5.0) / 12)


def check_batch(grade: Grade, name: str, found: dict[str, Any], logits: Tensor, labels: Tensor) -> None:
    real = int((labels != IGNORE).sum())
    about = f"{real} of {labels.numel()} positions have a label."
    loss, right = found["loss"], mean(logits, labels)
    if not found["tensor"] or not found["backward"]:
        grade.reject("no-gradient", f"{about} Your loss is {show(loss)}, and backward cannot run from it.")
    if loss.numel() != 1:
        grade.reject("unknown", f"{about} The loss should be one number; yours has the shape {tuple(loss.shape)}.")
    value = float(loss)
    if not real and value != 0.0:
        grade.reject("zero-of-zero", f"{about} Your loss is {value}, the mean of an empty set.")
    if not torch.isfinite(loss) and real:
        most = float(logits.abs().max())
        text = f"Scores up to {most:.0f}: your loss is {value}; in exact arithmetic it is {right:.4f}."
        grade.reject("overflows", text)
    if not close(value, right):
        for belief, numbers in beliefs(logits, labels).items():
            if any(close(value, number) for number in numbers):
                grade.reject(belief, f"{about} Your loss is {value:.4f}, and the mean over the {real} is {right:.4f}.")
    grade.compare(value, right, f"loss of the batch '{name}'", 1e-4, 1e-5)
    if real:
        check_gradient(grade, name, found["gradient"], logits, labels, real)


def check_gradient(grade: Grade, name: str, found: Tensor | None, logits: Tensor, labels: Tensor, real: int) -> None:
    mask = labels != IGNORE
    expected = (logits.softmax(-1) - F.one_hot(labels.clamp(min=0), logits.shape[-1])) * mask.unsqueeze(-1) / real
    if found is None or not found.isfinite().all():
        grade.reject("overflows", f"The loss of the batch '{name}' is right, but its gradient is not finite.")
    grade.compare(found, expected, f"gradient of the scores of the batch '{name}'", 1e-3, 1e-5)


def mean(logits: Tensor, labels: Tensor) -> float:
    """Compute the mean loss token by token in float64; return 0 if no position has a label."""
    losses = [-row.double().log_softmax(-1)[label] for row, label in pairs(logits, labels)]
    return float(sum(losses)) / max(len(losses), 1)


def pairs(logits: Tensor, labels: Tensor) -> list[tuple[Tensor, int]]:
    rows = zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True)
    return [(row, label) for row, label in rows if label != IGNORE]


def beliefs(logits: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Compute the loss of this batch under each misconception."""
    B, T, V = logits.shape
    mask, safe = labels != IGNORE, labels.clamp(min=0)
    real = int(mask.sum())
    total = mean(logits, labels) * real
    rows = [mean(logits[row : row + 1], labels[row : row + 1]) for row in range(B)]
    full = [row for row, has in zip(rows, mask.any(1).tolist(), strict=True) if has]
    p = logits.double().softmax(-1).gather(2, safe.unsqueeze(2)).squeeze(2)[mask]
    over_time = logits.double().log_softmax(1).gather(2, safe.unsqueeze(2)).squeeze(2)[mask]
    mixed = F.cross_entropy(logits.reshape(B, V, T), labels, reduction="sum") / max(real, 1)
    return {
        "no-mean-over-tokens": [total, total / B],
        "padding-counts": [total / (B * T), mean(logits, safe)],
        "mean-of-means": [sum(rows) / B, sum(full) / max(len(full), 1)],
        "softmax-first": [mean(logits.softmax(-1), labels)],
        "not-the-log": [float((1 - p).sum()) / max(real, 1), -float(p.sum()) / max(real, 1)],
        "wrong-dim": [-float(over_time.sum()) / max(real, 1)],
        "rows-mixed": [float(mixed)],
        "capped": [-float(some.log().sum()) / max(real, 1) for eps in EPS for some in (p + eps, p.clamp(min=eps))],
    }


def close(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-4 * max(1.0, abs(expected))


def show(loss: Any) -> str:
    return f"{float(loss):.4f}" if isinstance(loss, Tensor | float | int) else type(loss).__name__

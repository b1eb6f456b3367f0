"""Check that a text has the same loss however it is split, and that the model is unchanged."""

import math
from typing import Any

import torch
from ranks import CUTS, Model, cut, make_text
from torch import Tensor
from torch.nn import functional as F

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}).values[0]
    inputs, labels = make_text(grade.seed)
    right = mean([(inputs, labels)], grade.seed)
    for name, sizes in CUTS.items():
        check_switches(grade, name, found[name])
        check_loss(grade, name, found[name]["loss"], cut(grade.seed, sizes), right)
        check_unchanged(grade, name, found[name])
    means = [of_batches(cut(grade.seed, sizes), grade.seed)["mean-of-batches"][0] for sizes in CUTS.values()]
    grade.measured(f"loss of one text, split in {len(CUTS)} ways", f"{right:.4f} each time")
    grade.measured("means of batch means", f"{min(means):.4f} to {max(means):.4f}")
    grade.predicted("uneven", (16 * 2.0 + 16 * 2.0 + 4 * 5.0) / 36)


def check_switches(grade: Grade, name: str, found: dict[str, Any]) -> None:
    """Check how the model was called, if it recorded calls (a copy of the model does not record)."""
    seen = found["seen"]
    trained, noted = (sum(flags[place] for flags in seen) for place in (0, 1))
    if trained:
        text = f"In {trained} of {count(len(seen), 'forward pass', 'forward passes')} dropout was on:"
        text = f"{text} it set half of each token's numbers to 0."
        grade.reject("no-grad-is-eval", text)
    if noted:
        text = f"In {noted} of {count(len(seen), 'forward pass', 'forward passes')} autograd kept"
        text = f"{text} the data that a backward pass needs."
        grade.reject("eval-is-no-grad", f"{text} In a large model that is most of the memory of training.")


def check_loss(grade: Grade, name: str, loss: Any, batches: list[tuple[Tensor, Tensor]], right: float) -> None:
    if isinstance(loss, Tensor):
        text = f"evaluate should return a Python number; it returned a tensor of shape {tuple(loss.shape)}."
        grade.reject("returns-a-tensor", text)
    if isinstance(loss, bool) or not isinstance(loss, float | int):
        grade.reject("unknown", f"evaluate should return a number, and returned {type(loss).__name__}.")
    sizes = ", ".join(str(len(labels)) for _, labels in batches)
    yours, expected = distinct_texts(loss, right)
    text = f"Batches of {sizes} texts: you returned {yours}, but the mean over all tokens is {expected}."
    if not close(loss, right):
        for belief, numbers in of_batches(batches, grade.seed).items():
            if any(close(loss, number) for number in numbers):
                grade.reject(belief, text)
    grade.compare(loss, right, f"loss with batches of {sizes} texts", 1e-4, 1e-5)


def check_unchanged(grade: Grade, name: str, found: dict[str, Any]) -> None:
    before, after = found["before"], found["after"]
    if before and not all(after):
        grade.reject("stays-in-eval", "The model was in training mode before; after evaluate it is in eval mode.")
    if not before and any(after):
        grade.reject("always-to-train", "The model was in eval mode before; after evaluate it is in training mode.")
    if not found["autograd"]:
        text = "After evaluate autograd is off for the whole process: the next loss.backward() would fail."
        grade.reject("autograd-left-off", text)
    for gradient in found["gradients"]:
        if gradient is None or not torch.equal(gradient, torch.full_like(gradient, 0.5)):
            now = "None" if gradient is None else f"up to {float(gradient.abs().max()):.3g}"
            grade.reject("model-changed", f"Gradients of 0.5 were in .grad before evaluate; now they are {now}.")
    for new, old in zip(found["weights"], found["expected weights"], strict=True):
        if not torch.equal(new, old):
            gap = float((new - old).abs().max())
            grade.reject("model-changed", f"evaluate changed the weights by up to {gap:.3g}.")
    if not all(found["learnable"]):
        frozen = found["learnable"].count(False)
        text = f"After evaluate {frozen} of {count(len(found['learnable']), 'weight')} had requires_grad=False."
        grade.reject("model-changed", f"{text} They would no longer get gradients.")


def mean(batches: list[tuple[Tensor, Tensor]], seed: int) -> float:
    """Compute the mean loss over all tokens."""
    total, count = map(sum, zip(*(sums(inputs, labels, seed) for inputs, labels in batches), strict=True))
    return total / max(count, 1)


@torch.no_grad()
def sums(inputs: Tensor, labels: Tensor, seed: int) -> tuple[float, int]:
    """Return the sum of the losses and the number of labels."""
    model = Model(seed).eval()
    losses = F.cross_entropy(model(inputs).double().flatten(0, 1), labels.flatten(), reduction="sum")
    return float(losses), int((labels != -100).sum())


def of_batches(batches: list[tuple[Tensor, Tensor]], seed: int) -> dict[str, list[float]]:
    """Compute the loss of these batches under each misconception."""
    parts = [sums(inputs, labels, seed) for inputs, labels in batches]
    means, texts = [total / max(n, 1) for total, n in parts], [len(labels) for _, labels in batches]
    total, places = sum(total for total, _ in parts), sum(labels.numel() for _, labels in batches)
    full = [batch for batch in batches if len(batch[0]) == len(batches[0][0])]
    weighted = sum(m * n for m, n in zip(means, texts, strict=True)) / sum(texts)
    return {
        "mean-of-batches": [sum(means) / len(means), weighted],
        "padding-counts": [total / places],
        "last-batch-dropped": [mean(full, seed), mean(batches[:-1], seed) if len(batches) > 1 else math.nan],
        "perplexity": [math.exp(mean(batches, seed)), 2 ** mean(batches, seed)],
    }


def close(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-4 * max(1.0, abs(expected))

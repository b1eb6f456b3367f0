"""Compare the learner's inputs and labels with the text, position by position."""

import math
from typing import Any

import torch
from ranks import make_batches, make_text
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    best = make_text(grade.seed)[1]
    curve = f" The loss of a model trained with them fell to {value['curve'][-1]:.2f}; " if value["curve"] else " "
    curve += f"the text was produced by rolling dice, and no model can reach a loss below {best:.2f} on it."
    for found, tokens in zip(value["pairs"], make_batches(grade.seed), strict=True):
        check_pairs(grade, found, tokens, curve)
    first, last = value["curve"][0], value["curve"][-1]
    text = f"{first:.3f} at first, {last:.3f} after 60 steps; the lowest possible loss is {best:.3f}"
    grade.measured("loss on a text produced by rolling dice", text)
    grade.predicted("blind-guess", math.log(50_257))


def check_pairs(grade: Grade, found: Any, tokens: Tensor, curve: str) -> None:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
        grade.reject("unknown", f"Expected a tuple of two tensors, inputs and labels; found {type(found).__name__}.")
    inputs, labels = found
    shapes = (
        f"For a batch {tuple(tokens.shape)} you returned inputs {tuple(inputs.shape)}, labels {tuple(labels.shape)}."
    )
    if inputs.shape != labels.shape:
        grade.reject("unknown", f"{shapes} Each input needs one label.")
    if torch.equal(inputs, tokens[:, :-1]) and torch.equal(labels, tokens[:, 1:]):
        return
    if tokens.shape[0] > 1 and torch.equal(inputs, tokens[:-1]) and torch.equal(labels, tokens[1:]):
        grade.reject("across-samples", f"{shapes} Each label comes from the same position of the next window.")
    if torch.equal(inputs, labels):
        grade.reject("labels-are-inputs", f"{shapes} Each label equals its input.{curve}")
    if inputs.dim() == 2 and len(inputs) == len(tokens):
        check_last(grade, inputs, labels, tokens, shapes)
    pairs = list(zip(inputs.flatten().tolist(), labels.flatten().tolist(), strict=True))
    check_distances(grade, pairs, tokens, shapes, curve)
    missing = tokens[:, 1:].numel() - len(pairs)
    if missing > 0:
        text = f"{shapes} {count(tokens[:, 1:].numel(), 'token follows', 'tokens follow')} another token of a window;"
        grade.reject("pair-lost", f"{text} you left out {missing} of them.")
    grade.reject_different(labels, tokens[:, 1:], f"{shapes} Labels")


def check_last(grade: Grade, inputs: Tensor, labels: Tensor, tokens: Tensor, shapes: str) -> None:
    """Explain labels that are right except for the last of each window."""
    width = inputs.shape[1]
    if width < 2 or not torch.equal(inputs, tokens[:, :width]) or not torch.equal(labels[:, :-1], tokens[:, 1:width]):
        return
    last = labels[:, -1]
    about = f"{shapes} All labels except the last of each window are the next token. The last labels are"
    if torch.equal(last, tokens[:, 0]):
        grade.reject("wraps-around", f"{about} the first token of the same window.")
    if len(tokens) > 1 and torch.equal(last, tokens.roll(-1, 0)[:, 0]):
        grade.reject("windows-joined", f"{about} the first token of the next window.")
    if width == tokens.shape[1] - 1 and not torch.equal(last, tokens[:, -1]):
        same = torch.equal(last, inputs[:, -1])
        what = "the input at that position" if same else f"{', '.join(map(str, last.tolist()))}"
        right = ", ".join(map(str, tokens[:, -1].tolist()))
        grade.reject("last-made-up", f"{about} {what}; in the batch, {right} come next.")


def check_distances(grade: Grade, pairs: list[tuple[int, int]], tokens: Tensor, shapes: str, curve: str) -> None:
    """Explain wrong labels by the place that each was taken from."""
    distances = [distance(tokens, token, label) for token, label in pairs]
    kinds, of_all = set(distances), f"of {count(len(distances), 'label')}"
    if kinds == {-1}:
        grade.reject("shifted-backwards", f"{shapes} Each label is the token before its input.")
    ahead = {steps for steps in kinds if steps is not None and steps > 1}
    if len(ahead) == 1 and kinds <= {None, *ahead, *(steps for steps in kinds if steps is not None and steps <= 0)}:
        steps = ahead.pop()
        text = f"{shapes} {distances.count(steps)} {of_all} come {steps} positions after their input."
        grade.reject("shifted-twice", text + curve)
    wrong = next((place for place, steps in enumerate(distances) if steps != 1), None)
    if wrong is not None:
        token, label = pairs[wrong]
        text = f"{shapes} {distances.count(1)} {of_all} are the next token of the same window."
        grade.reject("unknown", f"{text} Token {token} has the label {label}, {where(tokens, label)}.")


def distance(tokens: Tensor, token: int, label: int) -> int | None:
    """Return the distance from an input to its label in the same window, or None if the label is not there."""
    for row in tokens.tolist():
        if token in row and label in row:
            return row.index(label) - row.index(token)
    return None


def where(tokens: Tensor, label: int) -> str:
    for number, row in enumerate(tokens.tolist()):
        if label in row:
            return f"which is token {row.index(label)} of window {number} (both counted from 0)"
    return "which is not in the batch"

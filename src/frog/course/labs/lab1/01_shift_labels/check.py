"""The learner's pairs of input and label, held against each place of the text."""

import math
from typing import Any

import torch
from ranks import make_batches, make_text
from torch import Tensor

from frog.grader.grade import Grade


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    best = make_text(grade.seed)[1]
    curve = f" The loss of a model trained with them went to {value['curve'][-1]:.2f}; " if value["curve"] else " "
    curve += f"the text is made by dice, and no guess can lose less than {best:.2f} on it."
    for found, tokens in zip(value["pairs"], make_batches(grade.seed), strict=True):
        check_pairs(grade, found, tokens, curve)
    first, last = value["curve"][0], value["curve"][-1]
    text = f"{first:.3f} at first, {last:.3f} after 60 steps; no guess can lose less than {best:.3f} on it"
    grade.measured("loss on a text made by dice", text)
    grade.predicted("blind-guess", math.log(50_257))


def check_pairs(grade: Grade, found: Any, tokens: Tensor, curve: str) -> None:
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
        grade.reject("unknown", f"Expected a tuple of two tensors, inputs and labels; found {type(found).__name__}.")
    inputs, labels = found
    shapes = f"Of a batch {tuple(tokens.shape)} you made inputs {tuple(inputs.shape)}, labels {tuple(labels.shape)}."
    if inputs.shape != labels.shape:
        grade.reject("unknown", f"{shapes} Each input needs one label.")
    if tokens.shape[0] > 1 and torch.equal(inputs, tokens[:-1]) and torch.equal(labels, tokens[1:]):
        grade.reject("across-samples", f"{shapes} Each label stands at the same place of the next window.")
    if torch.equal(inputs, labels):
        grade.reject("labels-are-inputs", f"{shapes} All labels equal the token that is read.{curve}")
    apart = distances(tokens, inputs, labels)
    wrong = sorted(set(apart) - {1})
    if wrong and 1 in apart:
        right = f"{apart.count(1)} of {len(apart)} labels are the next token"
        text = f"{shapes} {right}; others are {wrong[0]} places away."
        grade.reject("wraps-around", text)
    if wrong == [-1]:
        grade.reject("shifted-backwards", f"{shapes} Each label is the token before the one that is read.")
    if wrong and wrong[-1] > 1:
        text = f"{shapes} {apart.count(wrong[-1])} of {len(apart)} labels are {wrong[-1]} places after their input."
        grade.reject("shifted-twice", text + curve)
    if wrong:
        text = f"{shapes} Labels are {', '.join(map(str, wrong))} places after the token that is read."
        grade.reject("unknown", text)
    expected = tokens.shape[0] * (tokens.shape[1] - 1)
    if labels.numel() < expected:
        text = f"{shapes} There are {expected} pairs of a token and the next in it; you used {labels.numel()}."
        grade.reject("pair-lost", text)
    grade.compare(inputs, tokens[:, :-1], "inputs")
    grade.compare(labels, tokens[:, 1:], "labels")


def distances(tokens: Tensor, inputs: Tensor, labels: Tensor) -> list[int]:
    """How many places after its input each label stands in the batch, read row after row."""
    flat = {token: place for place, token in enumerate(tokens.flatten().tolist())}
    pairs = zip(inputs.flatten().tolist(), labels.flatten().tolist(), strict=True)
    return [flat.get(label, -999) - flat.get(token, -999) for token, label in pairs]

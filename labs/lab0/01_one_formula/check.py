"""Compare each new weight with the formula, element by element."""

import torch
from ranks import make_cases
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def check(grade: Grade) -> None:
    values = grade.call({"seed": grade.seed}).values[0]
    for found, (weights, gradients, rate) in zip(values["cases"], make_cases(grade.seed), strict=True):
        if found["error"]:
            hole = next(number for number, gradient in enumerate(gradients) if gradient is None)
            text = f"The gradient of weight {hole} is None, and your function stopped there: {found['error']}."
            grade.reject("none-is-a-number", text)
        check_untouched(grade, found, weights, gradients)
        check_new(grade, found["new"], weights, gradients, rate)
    weights, _, rate = make_cases(grade.seed)[0]
    check_new(grade, values["alone"], weights, weights, rate)
    w = 3.0
    for _ in range(3):
        w = w - 0.1 * (2 * w)
    grade.compare(values["three"], w, "w after three steps on w x w", rtol=1e-4)
    grade.predicted("after-three-steps", w)
    grade.measured("loss of w x w, from w = 3.0", f"9.000, after three steps {w * w:.3f}")


def check_untouched(grade: Grade, found: dict, weights: list[Tensor], gradients: list[Tensor | None]) -> None:
    for name, before, after in (("weight", weights, found["weights"]), ("gradient", gradients, found["gradients"])):
        if not isinstance(after, list) or len(before) != len(after):
            text = f"The caller passed {count(len(before), name)}; the list has {len(after)} after the call."
            grade.reject("in-place", text)
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if old is not None and not same(old, new):
                fits = new is not None and old.shape == new.shape
                change = f"up to {float((old - new).abs().max()):.3g}" if fits else "its shape"
                text = f"The call changed the caller's {name} {number} by {change}."
                grade.reject("in-place", text)


def check_new(grade: Grade, new: object, weights: list[Tensor], gradients: list[Tensor | None], rate: float) -> None:
    pairs = list(zip(weights, gradients, strict=True))
    if isinstance(new, list) and len(new) < len(weights) and len(new) == sum(g is not None for g in gradients):
        text = f"You got {count(len(weights), 'weight')}, one of them without a gradient, and returned {len(new)}."
        grade.reject("frozen-left-out", text)
    if not isinstance(new, list) or len(new) != len(weights) or not all(isinstance(w, Tensor) for w in new):
        grade.reject("unknown", f"Expected a list of {len(weights)} tensors, found {describe(new)}.")
    moved = [(w, g, n) for (w, g), n in zip(pairs, new, strict=True) if g is not None and w.numel()]
    beliefs = {
        "uphill": lambda w, g: w + rate * g,
        "full-step": lambda w, g: w - g,
        "rate-scales-all": lambda w, g: rate * (w - g),
        "change-not-weight": lambda w, g: rate * g,
        "change-not-weight.minus": lambda w, g: -rate * g,
        "sign-only": lambda w, g: w - rate * g.sign(),
    }
    for belief, formula in beliefs.items():
        if moved and all(same(formula(w, g), n, 1e-5) for w, g, n in moved):
            w, g, n = (float(part.flatten()[0]) for part in moved[0])
            text = f"Old weight {w:.4f}, gradient {g:.4f}, learning rate {rate:.4f}: your new weight is {n:.4f}."
            grade.reject(belief.split(".")[0], text)
    for number, ((w, g), n) in enumerate(zip(pairs, new, strict=True)):
        expected = w if g is None else w - rate * g
        grade.compare(n, expected, f"new weight {number} ({'no gradient' if g is None else 'with a gradient'})")
        if n.dtype != w.dtype:
            grade.reject("unknown", f"Weight {number} was {w.dtype}, the new one is {n.dtype}.")


def same(a: Tensor, b: Tensor | None, rtol: float = 0.0) -> bool:
    return b is not None and a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=rtol, atol=rtol)


def describe(value: object) -> str:
    if not isinstance(value, list):
        return f"a value of type {type(value).__name__}"
    other = next((place for place, one in enumerate(value) if not isinstance(one, Tensor)), None)
    if other is None:
        return f"a list of {len(value)}"
    return f"a list of {len(value)} in which element {other} (counted from 0) has type {type(value[other]).__name__}"

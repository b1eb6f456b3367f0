"""Compare the learner's steps with torch.optim.AdamW, and with AdamW with one mistake."""

from typing import Any, NoReturn

import torch
from ranks import NUM_STEPS, SHAPES, make_gradients, make_settings, make_weights
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import distinct_texts

Path = list[list[Tensor]]
"""Weights after each step."""


def check(grade: Grade) -> None:
    runs = grade.call({"seed": grade.seed}).values[0]
    start, gradients = make_weights(grade.seed), make_gradients(grade.seed)
    gap = 0.0
    for settings, run in zip(make_settings(grade.seed), runs, strict=True):
        found = [step["weights"] for step in run]
        if all(torch.equal(before, after) for before, after in zip(start, found[-1], strict=True)):
            text = f"After {NUM_STEPS} steps the caller's weights are unchanged, to the last bit."
            grade.reject("not-in-place", text)
        check_gradients(grade, run, gradients)
        check_path(grade, found, start, gradients, settings)
        expected = adamw(start, gradients, settings)
        gap = max(float((a - b).abs().max()) for a, b in zip(found[-1], expected[-1], strict=True))
    grade.measured(f"largest difference from torch.optim.AdamW after {NUM_STEPS} steps", f"{gap:.1e}")
    grade.predicted("state-bytes", 664_192 * 2 * 4)
    grade.note("With float32 weights and gradients that makes 16 bytes per weight (lab 1, Theory).")


def check_gradients(grade: Grade, run: list[dict[str, Any]], gradients: Path) -> None:
    for number, (step, before) in enumerate(zip(run, gradients, strict=True), start=1):
        for found, expected in zip(step["gradients"], before, strict=True):
            if not torch.equal(found, expected):
                change = float((found - expected).abs().max())
                text = f"Step {number} changed the caller's gradient by up to {change:.3g}."
                grade.reject("gradient-changed", text)


def check_path(grade: Grade, found: Path, start: list[Tensor], gradients: Path, settings: dict[str, Any]) -> None:
    expected = adamw(start, gradients, settings)
    wrong = next((n for n in range(NUM_STEPS) if not same(found[n], expected[n])), None)
    if wrong is not None:
        explain(grade, found, expected, wrong, start, gradients, settings)


def explain(
    grade: Grade,
    found: Path,
    expected: Path,
    wrong: int,
    start: list[Tensor],
    gradients: Path,
    settings: dict[str, Any],
) -> NoReturn:
    """Explain a difference. `wrong` is the first step, counted from 0, after which a weight differs."""
    which = next(i for i in range(len(SHAPES)) if not same(found[wrong][i : i + 1], expected[wrong][i : i + 1]))
    gaps = (found[wrong][which] - expected[wrong][which]).abs().nan_to_num(torch.inf).flatten()
    a, b = (path[wrong][which].flatten()[gaps.argmax()] for path in (found, expected))
    t = wrong + 1
    b1, b2 = settings["betas"]
    given = f"lr {settings['lr']:.3f}, betas ({b1:.3f}, {b2:.3f}), eps {settings['eps']:.2g}, "
    given = f"With {given}weight_decay {settings['weight_decay']:.2f}"
    yours, torchs = distinct_texts(float(a), float(b))
    kind = f"weight {which} (of shape {tuple(start[which].shape)})"
    text = f"{given}: in step {t} {kind} first differs from torch.optim.AdamW's: yours is {yours}, torch's is {torchs}."
    if not all(torch.isfinite(weight).all() for weight in found[0]):
        grade.reject("counts-from-zero", f"{text} After the first step some weights are not finite.")
    b1, b2 = settings["betas"]
    one_fixed = {f"settings-ignored.{b}": {"settings": {"betas": b}} for b in ((0.9, b2), (b1, 0.999))}
    for belief, options in (BELIEFS | one_fixed).items():
        variant = by_hand(start, gradients, settings | options.get("settings", {}), **without_settings(options))
        if all(same(found[n], variant[n]) for n in range(NUM_STEPS)):
            grade.reject(belief.split(".")[0], text)
    grade.reject("unknown", text)


def without_settings(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "settings"}


def adamw(start: list[Tensor], gradients: Path, settings: dict[str, Any]) -> Path:
    """torch's own."""
    weights = [torch.nn.Parameter(weight.clone()) for weight in start]
    optimizer, path = torch.optim.AdamW(weights, **settings), []
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        path.append([weight.detach().clone() for weight in weights])
    return path


BELIEFS: dict[str, dict[str, Any]] = {
    "l2-decay": {"decay": "gradient"},
    "no-decay": {"decay": "none"},
    "decay-without-rate": {"decay": "no rate"},
    "decays-the-new": {"decay": "new"},
    "no-bias-correction": {"correct": (False, False)},
    "no-bias-correction.2": {"correct": (True, False)},
    "no-bias-correction.3": {"correct": (False, True)},
    "state-forgotten": {"forget": True},
    "eps-elsewhere": {"eps_at": "in root"},
    "eps-elsewhere.2": {"eps_at": "before correction"},
    "eps-elsewhere.3": {"eps_at": "at least"},
    "eps-elsewhere.4": {"eps_at": "nowhere"},
    "no-root": {"root": False},
    "settings-ignored": {"settings": {"betas": (0.9, 0.999)}},
    "settings-ignored.2": {"settings": {"eps": 1e-8}},
    "settings-ignored.3": {"settings": {"weight_decay": 0.01}},
    "settings-ignored.4": {"settings": {"betas": (0.9, 0.999), "eps": 1e-8}},
    "settings-ignored.5": {"settings": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}},
    "vectors-not-decayed": {"decay": "matrices"},
    "largest-square": {"largest": True},
    "step-shared": {"shared": True},
    "step-shared.2": {"shared": True, "t_from": 1},
    "one-beta": {"one_beta": 0},
    "one-beta.2": {"one_beta": 1},
    "one-beta.3": {"one_beta": -1},
}


def by_hand(
    start: list[Tensor],
    gradients: Path,
    settings: dict[str, Any],
    *,
    decay: str = "weight",
    correct: tuple[bool, bool] = (True, True),
    forget: bool = False,
    eps_at: str = "outside",
    root: bool = True,
    one_beta: int | None = None,
    largest: bool = False,
    shared: bool = False,
    t_from: int = 0,
) -> Path:
    """Run AdamW with one part changed as a misconception would have it."""
    lr, wd, eps = settings["lr"], settings["weight_decay"], settings["eps"]
    betas = settings["betas"]
    b1, b2 = betas if one_beta is None else betas[::-1] if one_beta < 0 else (betas[one_beta],) * 2
    ms, vs, weights, path = [0.0] * len(start), [0.0] * len(start), list(start), []
    tops = [torch.zeros_like(weight) for weight in start]
    for number, step in enumerate(gradients, start=1):
        for i, gradient in enumerate(step):
            t = 1 if forget else (number - 1) * len(start) + i + 1 + t_from if shared else number
            w, g = weights[i], gradient
            g = g + wd * w if decay == "gradient" else g
            m, v = (0.0, 0.0) if forget else (ms[i], vs[i])
            ms[i], vs[i] = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            c1, c2 = (1 - b**t if on else 1.0 for b, on in zip((b1, b2), correct, strict=True))
            tops[i] = torch.maximum(tops[i], torch.as_tensor(vs[i]))
            new = w - lr * (ms[i] / c1) / denominator(tops[i] if largest else vs[i], c2, eps, eps_at, root)
            shrink = {"weight": lr * wd * w, "no rate": wd * w, "new": lr * wd * new}.get(decay, 0.0)
            if decay == "matrices" and w.dim() > 1:
                shrink = lr * wd * w
            weights[i] = new - shrink
        path.append(list(weights))
    return path


def denominator(v: Tensor, correction: float, eps: float, eps_at: str, root: bool) -> Tensor:
    if eps_at == "in root":
        return (v / correction + eps).sqrt()
    if eps_at == "before correction":
        return (v.sqrt() + eps) / correction**0.5
    if eps_at == "at least":
        return (v / correction).sqrt().clamp(min=eps)
    if eps_at == "nowhere":
        return (v / correction).sqrt()
    return ((v / correction).sqrt() if root else v / correction) + eps


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=2e-4, atol=2e-6, equal_nan=True) for a, b in zip(found, expected, strict=True))

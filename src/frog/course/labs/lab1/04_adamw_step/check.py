"""The learner's steps against torch.optim.AdamW, and against AdamW with one thing wrong."""

from typing import Any

import torch
from ranks import NUM_STEPS, SHAPES, make_gradients, make_settings, make_weights
from torch import Tensor

from frog.grader.grade import Grade

Path = list[list[Tensor]]
"""Weights after each step."""


def check(grade: Grade) -> None:
    runs = grade.call({"seed": grade.seed}).values[0]
    start, gradients = make_weights(grade.seed), make_gradients(grade.seed)
    apart = 0.0
    for settings, run in zip(make_settings(grade.seed), runs, strict=True):
        found = [step["weights"] for step in run]
        if all(torch.equal(before, after) for before, after in zip(start, found[-1], strict=True)):
            text = f"After {NUM_STEPS} steps the caller's weights are what they were, to the last bit."
            grade.reject("not-in-place", text)
        check_gradients(grade, run, gradients)
        check_path(grade, found, start, gradients, settings)
        expected = adamw(start, gradients, settings)
        apart = max(float((a - b).abs().max()) for a, b in zip(found[-1], expected[-1], strict=True))
    grade.measured(f"largest difference to torch.optim.AdamW after {NUM_STEPS} steps", f"{apart:.1e}")
    grade.predicted("state-bytes", 664_192 * 2 * 4)
    grade.note("With float32 weights and gradients that makes 16 bytes a weight: lab 1, Theory.")


def check_gradients(grade: Grade, run: list[dict[str, Any]], gradients: Path) -> None:
    for number, (step, before) in enumerate(zip(run, gradients, strict=True), start=1):
        for found, expected in zip(step["gradients"], before, strict=True):
            if not torch.equal(found, expected):
                change = float((found - expected).abs().max())
                text = f"After step {number} the caller's gradient is another: it changed by up to {change:.3g}."
                grade.reject("gradient-changed", text)


def check_path(grade: Grade, found: Path, start: list[Tensor], gradients: Path, settings: dict[str, Any]) -> None:
    expected = adamw(start, gradients, settings)
    wrong = next((n for n in range(NUM_STEPS) if not same(found[n], expected[n])), None)
    if wrong is None:
        return
    which = next(i for i in range(len(SHAPES)) if not same(found[wrong][i : i + 1], expected[wrong][i : i + 1]))
    gaps = (found[wrong][which] - expected[wrong][which]).abs().nan_to_num(torch.inf).flatten()
    a, b = (path[wrong][which].flatten()[gaps.argmax()] for path in (found, expected))
    t = wrong + 1
    eps = f"eps {settings['eps']:.2g}: in" if settings["eps"] > 0.1 else "In"
    both = f"{a:.6f}, there {b:.6f}, apart {abs(a - b):.2g}"
    text = f"{eps} step {t} weight {which} first differs from torch.optim.AdamW's: {both}."
    if not all(torch.isfinite(weight).all() for weight in found[0]):
        grade.reject("counts-from-zero", f"{text} In the first step something was divided by 0.")
    for belief, options in BELIEFS.items():
        variant = by_hand(start, gradients, settings, **options)
        if all(same(found[n], variant[n]) for n in range(NUM_STEPS)):
            grade.reject(belief.split(".")[0], text)
    if which == 1 and wrong == 0 and same(found[0][:1], expected[0][:1]):
        grade.reject("step-shared", f"{text} The first of {len(SHAPES)} weights, stepped just before, was right.")
    grade.compare(found[wrong], expected[wrong], f"weights after step {t}", 1e-3, 1e-5)


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
) -> Path:
    """AdamW, with one thing as somebody believes it to be."""
    lr, wd, eps = settings["lr"], settings["weight_decay"], settings["eps"]
    betas = settings["betas"]
    b1, b2 = betas if one_beta is None else betas[::-1] if one_beta < 0 else (betas[one_beta],) * 2
    ms, vs, weights, path = [0.0] * len(start), [0.0] * len(start), list(start), []
    for number, step in enumerate(gradients, start=1):
        t = 1 if forget else number
        for i, gradient in enumerate(step):
            w, g = weights[i], gradient
            g = g + wd * w if decay == "gradient" else g
            m, v = (0.0, 0.0) if forget else (ms[i], vs[i])
            ms[i], vs[i] = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
            c1, c2 = (1 - b**t if on else 1.0 for b, on in zip((b1, b2), correct, strict=True))
            new = w - lr * (ms[i] / c1) / denominator(vs[i], c2, eps, eps_at, root)
            shrink = {"weight": lr * wd * w, "no rate": wd * w, "new": lr * wd * new}.get(decay, 0.0)
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

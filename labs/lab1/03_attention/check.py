"""Compare the learner's attention with PyTorch's, and with attention under each misconception."""

import math
from typing import Any, NoReturn

import torch
from ranks import LARGE, REPLACED, make_inputs, output_weights
from torch import Tensor
from torch.nn import functional as F

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count


def check(grade: Grade) -> None:
    value = grade.call({"seed": grade.seed}).values[0]
    cases = list(zip(value["cases"], make_inputs(grade.seed), strict=True))
    for found, inputs in cases:
        check_shape(grade, found["y"], inputs[0])
    reach = seen_from(value)
    sums = f"{float(value['ones'].min()):.2f} to {float(value['ones'].max()):.2f}"
    for place, (found, inputs) in enumerate(cases):
        check_untouched(grade, found, inputs)
        if not close(found["y"], oracle(*inputs), is_large := place == LARGE):
            fitting = beliefs_that_fit([(one["y"], qkv) for one, qkv in cases])
            explain(grade, found["y"], *inputs, reach, sums, is_large, fitting)
    check_gradients(grade, value["gradients"])
    grade.measured("largest difference from PyTorch's attention", f"{difference(value['cases'], grade.seed):.1e}")
    grade.measured(f"token {REPLACED} was replaced", f"the output changed {reach}")
    grade.predicted("score-bytes", 16 * 4 * 64 * 64 * 4)
    grade.note(
        "Texts twice as long need four times the bytes for scores. Fused kernels never write the scores to memory."
    )


def check_shape(grade: Grade, y: Any, q: Tensor) -> None:
    if not isinstance(y, Tensor) or y.shape != q.shape:
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        grade.reject(
            "unknown", f"For queries of shape {tuple(q.shape)} the output should have that shape; found {shape}."
        )


def seen_from(value: dict[str, Any]) -> str:
    """Describe the positions of the first output that changed when one token was replaced."""
    change = (value["cases"][0]["y"] - value["replaced"]).abs().amax((0, 1, 3))
    places = [str(place) for place, size in enumerate(change.tolist()) if not size < 1e-6]
    return f"at positions {', '.join(places)}" if places else "nowhere"


def check_untouched(grade: Grade, found: dict[str, Any], inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    for name, before in zip("qkv", inputs, strict=True):
        if not torch.equal(found[name], before):
            change = float((found[name] - before).abs().max())
            grade.reject("in-place", f"The call changed the caller's {name} by up to {change:.3g}.")


def beliefs_that_fit(cases: list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]) -> set[str]:
    """Return the misconceptions that give the outputs of all cases; a single case can fit several."""
    fits = [
        {
            belief
            for belief, variant in beliefs(*inputs).items()
            if close(y.nan_to_num(), variant.nan_to_num(), place == LARGE)
        }
        for place, (y, inputs) in enumerate(cases)
    ]
    return set.intersection(*fits)


def explain(
    grade: Grade, y: Tensor, q: Tensor, k: Tensor, v: Tensor, reach: str, sums: str, is_large: bool, fitting: set[str]
) -> NoReturn:
    expected = oracle(q, k, v)
    about = f"{count(q.shape[1], 'query head')}, {count(k.shape[1], 'key head')}, {count(q.shape[2], 'token')}."
    if is_large:
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).transpose(-2, -1) / math.sqrt(q.shape[3])
        about = f"{about} Scores from {float(scores.min()):.0f} to {float(scores.max()):.0f}."
        if not y.isfinite().all():
            text = (
                f"{about} {int((~y.isfinite()).sum())} of {count(y.numel(), 'number')} of your output are not finite."
            )
            grade.reject("overflows", text)
    for belief in beliefs(q, k, v):
        if belief in fitting:
            largest = float((y - expected).nan_to_num().abs().max())
            text = f"{about} Your output differs from PyTorch's by up to {largest:.3f}."
            id = belief.split(".")[0]
            if id in ("sees-all", "sees-the-next", "mask-turned", "hides-itself"):
                text = f"{about} Token {REPLACED} of the first text was replaced; your output changed {reach}."
            if id in ("masked-after-softmax", "softmax-dim"):
                text += f" A token's weights should add up to 1; yours add up to {sums}."
            if id == "wrong-scale":
                text += f" It matches scores {belief.split('.')[1]}."
            if id == "mask-too-small":
                text += f" It matches future scores of {belief.split('.')[1]}."
            grade.reject(id, text)
    if y[:, :, 0].isnan().all():
        grade.reject("hides-itself", f"{about} The output of the first token is nan.")
    grade.reject_different(y, expected, f"{about} Attention")


def check_gradients(grade: Grade, found: list[Tensor | None] | None) -> None:
    inputs = [part.requires_grad_() for part in make_inputs(grade.seed)[1]]
    if found is None or any(part is None for part in found):
        grade.reject("no-gradient", "The output is right, but backward from it does not reach q, k and v.")
    y = oracle(*inputs)
    expected = torch.autograd.grad((y * output_weights(y.shape, grade.seed)).sum(), inputs)
    grade.compare(found, [part.detach() for part in expected], "gradients of q, k and v", 1e-3, 1e-4)


def oracle(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def beliefs(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Compute attention under each misconception."""
    H, K, T, C = q.shape[1], k.shape[1], q.shape[2], q.shape[3]
    ones = torch.ones(T, T, dtype=torch.bool)
    right_k, right_v = (part.repeat_interleave(H // K, dim=1) for part in (k, v))
    scores = q @ right_k.transpose(-2, -1) / math.sqrt(C)
    future = ones.triu(1)

    def masked(mask: Tensor, scores: Tensor = scores, value: float = -1e9, dim: int = -1) -> Tensor:
        return scores.masked_fill(mask, value).softmax(dim) @ right_v

    turned = (part.repeat(1, H // K, 1, 1) for part in (k, v))
    viewed = q @ right_k.reshape(*right_k.shape[:2], C, T) / math.sqrt(C)
    raw = scores * math.sqrt(C)
    return {
        "sees-all": masked(~ones),
        "sees-the-next": masked(ones.triu(2)),
        "hides-itself": masked(ones.triu(0)),
        "mask-turned": masked(ones.tril(-1)),
        "mask-turned.2": masked(ones.tril(0)),
        "masked-with-zero": masked(future, value=0.0),
        "mask-too-small.-10": masked(future, value=-10.0),
        "mask-too-small.-50": masked(future, value=-50.0),
        "mask-too-small.-100": masked(future, value=-100.0),
        "masked-after-softmax": scores.softmax(-1).masked_fill(future, 0.0) @ right_v,
        "wrong-scale.that are not divided": masked(future, raw),
        "wrong-scale.divided by C": masked(future, raw / C),
        "wrong-scale.divided by sqrt(H)": masked(future, raw / math.sqrt(H)),
        "wrong-scale.divided by H": masked(future, raw / H),
        "wrong-scale.divided by sqrt(H x C)": masked(future, raw / math.sqrt(H * C)),
        "wrong-scale.divided by sqrt(T)": masked(future, raw / math.sqrt(T)),
        "wrong-scale.multiplied by sqrt(C)": masked(future, raw * math.sqrt(C)),
        "softmax-dim": masked(future, value=-math.inf, dim=-2),
        "softmax-dim.2": masked(future, value=-math.inf, dim=1),
        "softmax-dim.3": masked(future, value=-math.inf, dim=0),
        "view-is-transpose": masked(future, viewed),
        "heads-paired-wrongly": oracle(q, *turned),
    }


def difference(cases: list[dict[str, Any]], seed: int) -> float:
    pairs = zip(cases, make_inputs(seed), strict=True)
    return max(float((found["y"] - oracle(*inputs)).abs().max()) for found, inputs in list(pairs)[:LARGE])


def close(found: Tensor, expected: Tensor, is_large: bool = False) -> bool:
    """True if both agree; large scores have larger rounding errors."""
    return torch.allclose(found, expected, rtol=1e-3 if is_large else 1e-4, atol=1e-3 if is_large else 1e-5)

"""Compare each part with arithmetic, and the whole model with Frog's own."""

import math
from typing import Any, NoReturn

import torch
from ranks import BATCHES, COMMON, SIZES, make_batch, make_weights, tables
from torch import Tensor
from torch.nn import functional as F

from frog.core.config import ModelConfig
from frog.learn.grader.grade import Grade
from frog.train.model.transformer import TinyTransformer

PARTS = {"norm": "RMSNorm", "ffn": "FeedForward", "attention": "Attention", "whole": "TinyTransformer"}
ORDERS = {
    "transposed": (0, 2, 1, 3),
    "as they are": (0, 1, 2, 3),
    "swapped": (0, 1, 3, 2),
    "interleaved": (0, 2, 3, 1),
    "columns first": (0, 3, 1, 2),
    "turned": (0, 3, 2, 1),
}
"""Orders of the dimensions of (B, H, T, C) before they are joined to (B, T, D); the first is right."""


def check(grade: Grade) -> None:
    configs = grade.call({"seed": grade.seed}).values[0]
    for part in PARTS:
        for number, (sizes, found) in enumerate(zip(SIZES, configs, strict=True)):
            check_load(grade, found["load"], number)
            for (B, T), parts in zip(BATCHES, found["batches"], strict=True):
                check_part(grade, part, parts[part], sizes, B, T, number)
    grade.measured("parts that are right", f"{len(PARTS)}, at {len(SIZES)} configs and {len(BATCHES)} batches each")
    grade.predicted("one-head", 16 * 64 * 128 // 4)
    grade.note("Two of the five raise no error at any size: only a comparison of the numbers shows them.")


def check_load(grade: Grade, problem: str, number: int) -> None:
    if not problem:
        return
    if problem.count(";") == 1 and problem.count("mlp.down_proj.weight is (") == 2:
        grade.reject("linear-is-out-in", f"FeedForward: {problem.split(';')[0]}.")
    grade.reject("sizes-fixed" if number else "weights-elsewhere", f"A checkpoint does not load: {problem[:200]}.")


def check_part(grade: Grade, part: str, y: Any, sizes: dict[str, Any], B: int, T: int, number: int) -> None:
    weights = make_weights(grade.seed, sizes)
    tokens, x = make_batch(grade.seed, B, T, sizes["hidden_size"])
    about = f"{PARTS[part]}, batch of {B} texts of {T} tokens, width {sizes['hidden_size']}"
    expected = oracle(part, weights, sizes, tokens, x)
    if not (isinstance(y, Tensor) and y.shape == expected.shape and close(y, expected)):
        explain(grade, part, y, expected, sizes, weights, tokens, x, about, is_first=number == 0)


def explain(
    grade: Grade,
    part: str,
    y: Any,
    expected: Tensor,
    sizes: dict[str, Any],
    weights: dict[str, Tensor],
    tokens: Tensor,
    x: Tensor,
    about: str,
    is_first: bool,
) -> NoReturn:
    if part == "norm":
        check_norm(grade, y, x, weights, about)
    if part == "attention":
        check_attention(grade, y, x, sizes, weights, about)
    if part == "whole":
        check_whole(grade, y, sizes, weights, tokens, about)
    if isinstance(y, str):
        grade.reject("unknown" if is_first else "sizes-fixed", f"{about}: {y}")
    if y.shape != expected.shape:
        grade.reject("unknown", f"{about}: the output is {tuple(y.shape)}, expected {tuple(expected.shape)}.")
    if not is_first:
        text = f"{about}: right at width {SIZES[0]['hidden_size']}, here off by up to {gap(y, expected)}."
        grade.reject("sizes-fixed", text)
    grade.reject_different(y, expected, about)


def check_norm(grade: Grade, y: Any, x: Tensor, weights: dict[str, Tensor], about: str) -> None:
    weight = weights["layers.0.input_layernorm.weight"]
    for dims in ((1,), (0,), (0, 1), (1, 2), (0, 1, 2)):
        other = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + COMMON["rms_norm_eps"]) * weight
        if isinstance(y, Tensor) and y.shape == other.shape and close(y, other):
            text = (
                f"{about}: each number was divided by a mean over dimension {', '.join(map(str, dims))} of (B, T, D)."
            )
            grade.reject("norm-over-tokens", text)
    outside = x / (x.square().mean(-1, keepdim=True).sqrt() + COMMON["rms_norm_eps"]) * weight
    if isinstance(y, Tensor) and y.shape == outside.shape and close(y, outside):
        eps = f"eps is {COMMON['rms_norm_eps']}; your output matches x / (root mean square + eps)"
        grade.reject("eps-outside", f"{about}: {eps}, off by up to {gap(y, oracle_of_norm(x, weight))}.")
    if (isinstance(y, str) and "must match" in y) or (isinstance(y, Tensor) and x.shape[0] == x.shape[1]):
        seen = y if isinstance(y, str) else "no error, but wrong numbers, since here B and T are equal"
        grade.reject("mean-drops-a-dim", f"{about}: {seen}.")


def check_attention(
    grade: Grade, y: Any, x: Tensor, sizes: dict[str, Any], weights: dict[str, Tensor], about: str
) -> None:
    if not isinstance(y, Tensor):
        return
    expected = attention(x, sizes, weights)
    for splits in ("transposed", "viewed", "turned"):
        for merges in ORDERS:
            other = attention(x, sizes, weights, splits, merges)
            if (splits, merges) == ("transposed", "transposed") or y.shape != other.shape or not close(y, other):
                continue
            id = "merge-without-transpose" if splits == "transposed" else "view-splits-heads"
            text = f"{about}: no error, the right shape {tuple(y.shape)}, but numbers off by up to {gap(y, expected)}."
            what = "where the heads are joined" if splits == "transposed" else "where columns are split into heads"
            grade.reject(id, f"{text} It goes wrong {what}.")
    tiled = attention(x, sizes, weights, tiles=True)
    if sizes["num_key_value_heads"] < sizes["num_attention_heads"] and y.shape == tiled.shape and close(y, tiled):
        heads = f"{sizes['num_attention_heads']} query heads and {sizes['num_key_value_heads']} key heads"
        text = f"{about}, {heads}: query head 1 used key head 1, not 0; the output is off by up to {gap(y, expected)}."
        grade.reject("heads-paired-wrongly", text)


def check_whole(
    grade: Grade, y: Any, sizes: dict[str, Any], weights: dict[str, Tensor], tokens: Tensor, about: str
) -> None:
    B, T = tokens.shape
    if isinstance(y, str) and "must match" in y and B > 1:
        grade.reject("batch-is-time", f"{about}, in which each part is right on its own: {y}.")
    for places in (torch.zeros(T, dtype=torch.long), torch.full((T,), B - 1)):
        other = whole(sizes, weights, tokens, places)
        if isinstance(y, Tensor) and y.shape == other.shape and close(y, other):
            text = f"{about}: no error, but all {T} tokens were rotated by the angle of position {int(places[0])}."
            grade.reject("batch-is-time", text)


def oracle(part: str, weights: dict[str, Tensor], sizes: dict[str, Any], tokens: Tensor, x: Tensor) -> Tensor:
    if part == "norm":
        weight = weights["layers.0.input_layernorm.weight"]
        return oracle_of_norm(x, weight)
    if part == "ffn":
        gate, up, down = (weights[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
    if part == "attention":
        return attention(x, sizes, weights)
    return whole(sizes, weights, tokens, torch.arange(tokens.shape[1]))


def oracle_of_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, COMMON["rms_norm_eps"])


@torch.no_grad()
def whole(sizes: dict[str, Any], weights: dict[str, Tensor], tokens: Tensor, places: Tensor) -> Tensor:
    """Run Frog's model with each token at the given position."""
    fields = {name: value for name, value in sizes.items() if name != "head_dim"}
    model = TinyTransformer(ModelConfig(**COMMON, **fields))
    model.load_state_dict(weights)
    return model(tokens, positions_T=places)


def attention(
    x: Tensor,
    sizes: dict[str, Any],
    weights: dict[str, Tensor],
    splits: str = "transposed",
    merges: str = "transposed",
    tiles: bool = False,
) -> Tensor:
    """Compute attention by hand, optionally with heads split, joined or paired in other ways."""
    B, T, D = x.shape
    C = sizes["head_dim"]
    cos, sin = tables(sizes, T)
    q, k, v, o = (weights[f"layers.0.self_attn.{name}_proj.weight"] for name in "qkvo")
    q, k, v = (split(x @ w.T, B, T, C, splits) for w in (q, k, v))
    q, k = (part * cos + torch.cat([-part[..., C // 2 :], part[..., : C // 2]], -1) * sin for part in (q, k))
    group = q.shape[1] // k.shape[1]
    k, v = (part.repeat(1, group, 1, 1) if tiles else part.repeat_interleave(group, dim=1) for part in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(C) + torch.full((T, T), -math.inf).triu(1)
    y = scores.softmax(-1) @ v
    return y.permute(ORDERS[merges]).reshape(B, T, D) @ o.T


def split(x: Tensor, B: int, T: int, C: int, how: str) -> Tensor:
    if how == "transposed":
        return x.view(B, T, -1, C).transpose(1, 2)
    return (x if how == "viewed" else x.transpose(1, 2)).reshape(B, -1, T, C)


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4)


def gap(found: Tensor, expected: Tensor) -> str:
    return f"{float((found - expected).abs().max()):.3f}"

"""Compare the classifier's scores with plain functions, and the tensors that it registers with the docstrings."""

from collections.abc import Callable
from typing import Any

import torch
from ranks import BATCHES, DROPOUT, SIZES, WEIGHTS, make_tokens, make_weights, shapes_of
from torch import Tensor
from torch.nn import functional as F

from frog.learn.grader.grade import Grade

TIMES = 200


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed, "times": TIMES}).values[0]
    if isinstance(found, dict):
        grade.reject("no-super-init", f"Creating the model failed: {found['no model']}.")
    for sizes, one in zip(SIZES, found, strict=True):
        check_registered(grade, sizes, one)
        check_stays(grade, sizes, one)
        for (B, T), scores in zip(BATCHES, one["scores"], strict=True):
            check_scores(grade, sizes, B, T, scores)
        check_gradients(grade, sizes, one["gradients"])
        check_dropout(grade, sizes, one["training"][0])
        if not one["imported"]:
            grade.reject("copied-not-imported", "No block of the model is a ResidualBlock of layers.py.")
    count = sum(torch.Size(shape).numel() for shape in shapes_of(SIZES[0]).values())
    grade.measured("parameters that the optimizer would train", f"{count}, in {len(shapes_of(SIZES[0]))} tensors")
    grade.measured("largest difference from plain functions", "less than 1e-4")
    grade.predicted("parameters", sum(p.numel() for p in torch.nn.Linear(16, 40).parameters()))


def named(sizes: dict[str, int]) -> str:
    return f"{sizes['num_blocks']} blocks of width {sizes['width']}"


# ---- what the model registers ----------------------------------------------------------------------------------------


def check_registered(grade: Grade, sizes: dict[str, int], one: dict[str, Any]) -> None:
    wanted, own = shapes_of(sizes), {name: tuple(shape) for name, shape in one["shapes"].items()}
    missing = sorted(wanted.keys() - own.keys())
    if missing and not own.keys() - wanted.keys():
        says = f"{named(sizes)}: state_dict has {len(own)} of {len(wanted)} tensors; {missing[0]} is missing."
        scores, again = one["without dropout"]
        if not is_scores(scores):
            grade.reject("raised", f"{says} Calling the model raised {scores}.")
        if not torch.equal(scores, again):
            grade.reject("made-in-forward", f"{says} Without dropout, two calls gave different scores.")
        if not any(name.startswith("blocks.") for name in own):
            grade.reject(
                "plain-list", f"{says} All tensors of the blocks are missing too, but two calls of the model agree."
            )
        grade.reject("unknown", f"{says} Which module in the docstring should have it?")
    if own.keys() != wanted.keys():
        strange = sorted(own.keys() - wanted.keys())
        grade.reject("unknown", f"{named(sizes)}: state_dict has {strange[:3]}, and lacks {missing[:3]}.")
    for name, shape in wanted.items():
        if own[name] == shape:
            continue
        says = f"{named(sizes)}: {name} is {own[name]}, but should be {shape}."
        grade.reject("in-and-out-swapped" if is_swapped(own, wanted, name) else "unknown", says)
    count = sum(torch.Size(shape).numel() for shape in wanted.values())
    if one["trained"] != count:
        block = sum(torch.Size(shape).numel() for name, shape in wanted.items() if name.startswith("blocks.0."))
        says = f"{named(sizes)}: the optimizer would train {one['trained']} parameters; there should be {count}."
        is_one = one["trained"] == count - (sizes["num_blocks"] - 1) * block
        grade.reject(
            "one-block-many-times" if is_one else "unknown", f"{says} One block has {block}." if is_one else says
        )


def is_swapped(own: dict[str, Any], wanted: dict[str, Any], name: str) -> bool:
    weight = name.rsplit(".", 1)[0] + ".weight"
    return own[weight] == tuple(reversed(wanted[weight]))


# ---- what it computes ------------------------------------------------------------------------------------------------


def is_scores(value: Any) -> bool:
    return isinstance(value, Tensor)


def check_stays(grade: Grade, sizes: dict[str, int], one: dict[str, Any]) -> None:
    """Check that two calls in evaluation mode give the same scores."""
    where = f"{named(sizes)}: two calls in evaluation mode gave different scores"
    if not all(map(is_scores, one["without dropout"])):
        return
    if not torch.equal(*one["without dropout"]):
        grade.reject("made-in-forward", f"{where}, even with dropout switched off.")
    for scores, again in zip(one["scores"], one["again"], strict=True):
        if is_scores(scores) and is_scores(again) and not torch.equal(scores, again):
            grade.reject("dropout-never-off", f"{where}; with dropout switched off they are equal.")


def check_gradients(grade: Grade, sizes: dict[str, int], found: Any) -> None:
    """Check that backward reaches each weight and gives the same gradient as the plain functions."""
    B, T = BATCHES[0]
    where = f"{named(sizes)}, backward from the scores"
    if isinstance(found, str):
        grade.reject("cannot-train", f"{where} raised {found}.")
    weights = {name: value.requires_grad_() for name, value in make_weights(grade.seed, sizes).items()}
    scores = classify(weights, make_tokens(grade.seed, B, T, sizes["vocab_size"]))
    (scores * WEIGHTS[: scores.shape[-1]]).sum().backward()
    for name, weight in weights.items():
        assert weight.grad is not None
        if found.get(name) is None:
            grade.reject("cannot-train", f"{where}: {name} has no gradient.")
        if not torch.allclose(found[name], weight.grad, rtol=1e-3, atol=1e-4):
            gap = (found[name] - weight.grad).abs().max().item()
            grade.reject(
                "cannot-train",
                f"{where}: the gradient of {name} is off by up to {gap:.2g}, although the scores are right.",
            )


def check_scores(grade: Grade, sizes: dict[str, int], B: int, T: int, scores: Any) -> None:
    where = f"{named(sizes)}, {B} texts of {T} tokens"
    weights, tokens = make_weights(grade.seed, sizes), make_tokens(grade.seed, B, T, sizes["vocab_size"])
    expected = classify(weights, tokens)
    if is_scores(scores) and scores.shape == expected.shape and torch.allclose(scores, expected, rtol=1e-3, atol=1e-4):
        return
    for id, words, other in variants(weights, tokens):
        if is_scores(scores) and scores.shape == other.shape and torch.allclose(scores, other, rtol=1e-3, atol=1e-4):
            shape = f"the shape {tuple(scores.shape)}" if scores.shape != expected.shape else "the right shape"
            grade.reject(id, f"{where}: {shape}, but the scores are those of a model {words}.")
    if not is_scores(scores):
        width = sizes["width"]
        pooled = f"x{T} and {width}x" in scores or ("shapes cannot" in scores and f"x{width} and" not in scores)
        grade.reject("pooled-over-the-batch" if pooled else "raised", f"{where}: {scores}")
    if scores.shape != expected.shape:
        text = f"{where}: the output is {tuple(scores.shape)}, expected {tuple(expected.shape)}: (texts, classes)."
        grade.reject("unknown", text)
    grade.compare(scores, expected, where, 1e-3, 1e-4)


Block = Callable[[dict[str, Tensor], Tensor], Tensor]


def inner(block: dict[str, Tensor], x: Tensor, activation: Callable[[Tensor], Tensor] = F.gelu) -> Tensor:
    """Compute the block without its norm and without the residual sum."""
    return activation(x @ block["up.weight"].T + block["up.bias"]) @ block["down.weight"].T + block["down.bias"]


def norm(block: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], block["norm.weight"], block["norm.bias"])


def usual(block: dict[str, Tensor], x: Tensor) -> Tensor:
    return x + inner(block, norm(block, x))


def hidden(weights: dict[str, Tensor], tokens: Tensor, block_of: Block = usual) -> Tensor:
    x, number = weights["embed.weight"][tokens], 0
    while f"blocks.{number}.norm.weight" in weights:
        start = f"blocks.{number}."
        x = block_of({k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)}, x)
        number += 1
    return x


def classify(
    weights: dict[str, Tensor],
    tokens: Tensor,
    block_of: Block = usual,
    pool: Callable[[Tensor], Tensor] = lambda x: x.mean(1),
) -> Tensor:
    return pool(hidden(weights, tokens, block_of)) @ weights["head.weight"].T + weights["head.bias"]


def variants(weights: dict[str, Tensor], tokens: Tensor) -> list[tuple[str, str, Tensor]]:
    """Return common mistakes: the id, a description, and the scores that it gives."""
    right = classify(weights, tokens)
    blocks: list[tuple[str, str, Block]] = [
        ("no-residual", "whose blocks do not add their input", lambda b, x: inner(b, norm(b, x))),
        ("norm-comes-last", "whose norm comes after the sum", lambda b, x: norm(b, x + inner(b, x))),
        ("norm-comes-last", "that adds the normalized input", lambda b, x: norm(b, x) + inner(b, norm(b, x))),
        ("norm-comes-last", "whose norm comes after the layers", lambda b, x: x + norm(b, inner(b, x))),
        ("other-activation", "with ReLU instead of GELU", lambda b, x: x + inner(b, norm(b, x), torch.relu)),
        ("other-activation", "with SiLU instead of GELU", lambda b, x: x + inner(b, norm(b, x), F.silu)),
        ("other-activation", "with tanh instead of GELU", lambda b, x: x + inner(b, norm(b, x), torch.tanh)),
        ("other-activation", "without an activation", lambda b, x: x + inner(b, norm(b, x), lambda y: y)),
    ]
    found = [(id, words, classify(weights, tokens, block)) for id, words, block in blocks]
    found += [
        (
            "pooled-over-the-batch",
            "that averages over the texts of the batch",
            classify(weights, tokens, pool=lambda x: x.mean(0)),
        ),
        ("last-token-alone", "that scores only the last token", classify(weights, tokens, pool=lambda x: x[:, -1])),
        ("last-token-alone", "that scores only the first token", classify(weights, tokens, pool=lambda x: x[:, 0])),
        (
            "last-token-alone",
            "that takes the largest value of each column",
            classify(weights, tokens, pool=lambda x: x.amax(1)),
        ),
        (
            "unknown",
            "that sums over the tokens and does not divide",
            classify(weights, tokens, pool=lambda x: x.sum(1)),
        ),
        ("softmax-in-the-model", "that returns probabilities", right.softmax(-1)),
        ("softmax-in-the-model", "that returns logarithms of probabilities", right.log_softmax(-1)),
    ]
    return found


# ---- dropout ---------------------------------------------------------------------------------------------------------


def check_dropout(grade: Grade, sizes: dict[str, int], scores: list[Tensor]) -> None:
    """Check dropout in training: it scales a block's own result, and never drops the block's input."""
    where = f"{named(sizes)}, in training, dropout {DROPOUT}"
    if all(torch.equal(scores[0], other) for other in scores[1:]):
        grade.reject("dropout-missing", f"{where}: all {len(scores)} calls gave the same scores.")
    B, T = BATCHES[0]
    weights, tokens = make_weights(grade.seed, sizes), make_tokens(grade.seed, B, T, sizes["vocab_size"])
    spread = torch.stack(scores).std(0).mean().item()
    ways = {"branch": DROPOUT, "sum": DROPOUT, "default": 0.5, "kept": 1 - DROPOUT}
    expected = {way: simulated(weights, tokens, way, p) for way, p in ways.items()}
    gaps = {way: abs(spread / value - 1) for way, value in expected.items()}
    nearest = min(gaps, key=gaps.__getitem__)
    if nearest == "branch" or gaps["branch"] < 0.2:
        return
    says = f"{where}: scores vary by {spread:.2f}, but should vary by {expected['branch']:.2f}"
    if nearest == "sum":
        grade.reject("dropout-on-the-sum", f"{says}; with dropout on the whole sum, by {expected['sum']:.2f}.")
    p = ways[nearest]
    grade.reject("other-probability", f"{says}; with a probability of {p:g}, by {expected[nearest]:.2f}.")


def simulated(weights: dict[str, Tensor], tokens: Tensor, way: str, p: float) -> float:
    """Return the standard deviation of the scores over many random masks."""
    generator = torch.Generator().manual_seed(0)

    def dropped(x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=generator) > p) / (1 - p)

    def block(b: dict[str, Tensor], x: Tensor) -> Tensor:
        added = inner(b, norm(b, x))
        return dropped(x + added) if way == "sum" else x + dropped(added)

    return torch.stack([classify(weights, tokens, block) for _ in range(400)]).std(0).mean().item()

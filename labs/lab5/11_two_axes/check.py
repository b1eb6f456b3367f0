"""Compare losses, gradients, norms and weights with one process, and bytes held and sent with the mesh's formulas."""

import math
import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from ranks import FROZEN, MARK, OPTIONS, TOKENS, Table, batch, weights
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm, linear

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count, distinct_texts

MESHES = {2: [(1, 2), (2, 1)], 4: [(2, 2)]}
"""Sizes of the data axis and the tensor axis, by world. With both axes, two mistakes can look alike: it comes last."""


def check(grade: Grade) -> None:
    draw, largest = random.Random(grade.seed), 0.0
    for size, meshes in MESHES.items():
        cases = [draw_case(draw, grade.seed % 10**6, *mesh) for mesh in meshes]
        world = grade.world(size, cases, seconds=6.0)
        check_waited(grade, world)
        for number, case in enumerate(cases):
            found = [value[number] for value in world.values]
            check_parts(grade, case, found)
            largest = max(largest, check_steps(grade, Oracle(case), found))
            check_sent(grade, world, number, case)
    grade.measured("weights on 3 meshes, compared with one process", f"off by up to {largest:.1e}")
    held, whole = found[0]["bytes"], 4 * sum(value.numel() for value in weights(case).values())
    name = f"mesh of {case['data']} x {case['tensor']}"
    grade.measured(f"bytes of parameters on rank 0, {name}", f"{held:,} of {whole:,}")
    grade.measured(f"bytes that rank 0 sends in a step, {name}", f"{sent_bytes(world, number, case):,.0f}")
    grade.predicted("reductions", 24 * 2)
    grade.predicted("held", 100 * (0.9 / 8 + 0.1))


def draw_case(draw: random.Random, seed: int, data: int, tensor: int) -> dict[str, Any]:
    """Draw sizes: the tensor axis never divides the inner width, the data axis never the samples."""
    samples = draw.choice([3, 5])
    return {
        "data": data,
        "tensor": tensor,
        "vocabulary": draw.choice([11, 13]),
        "width": draw.choice([6, 7]),
        "inner": draw.choice([61, 67]),
        "num_layers": 2,
        "steps": 2 if data * tensor == 4 else 1,
        "samples": samples,
        "hinted": draw.randrange(samples),
        "max_norm": draw.choice([0.3, 0.4]),
        "seed": seed + 10 * data + tensor,
    }


def name_of(case: dict[str, Any]) -> str:
    return f"Mesh of {case['data']} (data) x {case['tensor']} (tensor), {case['samples']} samples"


# ---- one process -----------------------------------------------------------------------------------------------------


def dim_of(name: str) -> int | None:
    """Return the dim on which the tensor axis divides a parameter; None if each rank has all of it."""
    return {"up.weight": 0, "up.bias": 0, "down.weight": 1}.get(".".join(name.split(".")[-2:]))


class Oracle:
    """The training in one process, and what becomes of a step under each misconception."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case, self.weights = case, weights(case)
        self.trained = {name: torch.nn.Parameter(p) for name, p in self.weights.items() if name not in FROZEN}
        self.weights |= self.trained
        self.optimizer = torch.optim.AdamW(list(self.trained.values()), **OPTIONS)
        self.shares = torch.arange(case["samples"]).tensor_split(case["data"])

    def forward(self, tokens: Tensor, way: str = "", only: int = 0) -> Tensor:
        """Return the logits. way: a misconception about the layers; only: the tensor rank on which it is seen."""
        p, size = self.weights, self.case["tensor"]
        x = p["embedding.weight"][tokens] + (tokens[:, :1, None] == 0) * p["hint"]
        for number in range(self.case["num_layers"]):
            own = {name: p[f"layers.{number}.{name}"] for name in ("norm.weight", "norm.bias", "down.bias")}
            normalized = layer_norm(x, x.shape[-1:], own["norm.weight"], own["norm.bias"])
            split = [
                p[f"layers.{number}.{name}"].tensor_split(size, dim)
                for name, dim in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1))
            ]
            y = torch.zeros_like(x)
            for rank, (up, bias, down) in enumerate(zip(*split, strict=True)):
                seen = normalized.detach() if way == "enter-forgotten" and rank != only else normalized
                y = y + linear(torch.tanh(linear(seen, up, bias)), down)
            if way == "leave-reduces-twice":
                y = size * y - ((size - 1) * y).detach()
            x = x + y + own["down.bias"] * (size if way == "bias-on-every-rank" else 1)
        return linear(layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"]), p["embedding.weight"])

    def loss(self, step: int, share: Tensor | None = None, way: str = "", only: int = 0) -> Tensor:
        """Return the mean loss over the batch, or over a share of it."""
        inputs, targets = batch(self.case, step)
        share = torch.arange(len(inputs)) if share is None else share
        return cross_entropy(self.forward(inputs[share], way, only).flatten(0, 1), targets[share].flatten())

    def gradients(self, step: int, share: Tensor | None = None, way: str = "", only: int = 0) -> Table:
        """Return the gradients, without those that are None."""
        loss = self.loss(step, share, way, only)
        found = torch.autograd.grad(loss, list(self.trained.values()), allow_unused=True)
        return {name: g for name, g in zip(self.trained, found, strict=True) if g is not None}

    def update(self, gradients: Table) -> None:
        for name, p in self.trained.items():
            p.grad = gradients[name].clone() if name in gradients else None
        self.optimizer.step()


def limited(gradients: Table, most: float) -> Table:
    factor = min(1.0, most / length(gradients))
    return {name: g * factor for name, g in gradients.items()}


def length(gradients: Table) -> float:
    return math.sqrt(sum(g.double().square().sum().item() for g in gradients.values()))


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


# ---- parts -----------------------------------------------------------------------------------------------------------


def check_waited(grade: Grade, world: Any) -> None:
    for rank, calls in enumerate(world.calls):
        started = [call for call in calls if call.is_async]
        waited = sum(call.waited for call in started)
        if waited < len(started):
            text = f"Rank {rank} started {count(len(started), 'asynchronous operation')} and waited for {waited}."
            grade.reject("not-waited", text)


def check_parts(grade: Grade, case: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Check names, requires_grad, the bytes that a rank holds, and that the parts make up the whole."""
    whole = weights(case)
    for rank, one in enumerate(found):
        where = f"{name_of(case)}, rank {rank}"
        if set(one["shapes"]) != set(whole):
            names = sorted(set(one["shapes"]) ^ set(whole))
            grade.reject(
                "unknown", f"{where}: only before or only after TwoAxes, the model has {', '.join(names[:4])}."
            )
        changed = sorted(set(one["trained"]) ^ (set(whole) - set(FROZEN)))
        if changed:
            text = f"{where}: TwoAxes has changed requires_grad of {', '.join(changed)}."
            grade.reject("frozen-trained" if set(changed) <= set(FROZEN) else "unknown", text)
        check_held(grade, case, one, where)
        for name, value in whole.items():
            if not close(one["start"].get(name, torch.zeros(0)), value):
                explain_whole(grade, where, name, one, value)


def part_numel(case: dict[str, Any], name: str, value: Tensor) -> int:
    """Return the elements of a parameter on the rank that has most."""
    dim = dim_of(name)
    return value.numel() if dim is None else value.tensor_split(case["tensor"], dim)[0].numel()


def check_held(grade: Grade, case: dict[str, Any], one: dict[str, Any], where: str) -> None:
    whole = weights(case)
    expected = 4 * sum(part_numel(case, name, value) for name, value in whole.items())
    shapes = 4 * sum(math.prod(shape) for shape in one["shapes"].values())
    total = 4 * sum(value.numel() for value in whole.values())
    says = (
        f"{where}: the memory of its parameters has {one['bytes']:,} bytes, expected {expected:,}; the whole model has"
    )
    if one["bytes"] > 1.2 * expected:
        if shapes <= 1.2 * expected:
            grade.reject("part-is-a-view", f"{says} {total:,}. By their shapes they need {shapes:,}.")
        grade.reject("model-not-divided", f"{says} {total:,}.")


def explain_whole(grade: Grade, where: str, name: str, one: dict[str, Any], right: Tensor) -> NoReturn:
    got = one["start"].get(name)
    if got is None:
        grade.reject("unknown", f"{where}: whole returned nothing for {name}.")
    says = f"{where}: after TwoAxes, `whole` returns {name} "
    if got.shape != right.shape:
        own = list(got.shape) == one["shapes"][name]
        says += f"with the shape {list(got.shape)}; the model had {list(right.shape)} there."
        grade.reject("whole-is-own-part" if own else "unknown", says)
    says += f"with values that differ from the model's by up to {(got - right).abs().max():.2g}."
    ratio = float(got.flatten()[0] / right.flatten()[0])
    if dim_of(name) is None and ratio > 1.5 and close(got, ratio * right):
        grade.reject("copies-added-up", f"{says} Yours are {ratio:.3f} times as large.")
    grade.reject("unknown", says)


# ---- steps -----------------------------------------------------------------------------------------------------------


def check_steps(grade: Grade, oracle: Oracle, found: list[dict[str, Any]]) -> float:
    case, largest = oracle.case, 0.0
    for step in range(case["steps"]):
        right = oracle.gradients(step)
        loss = oracle.loss(step).item()
        for rank, one in enumerate(found):
            where = f"{name_of(case)}, step {step + 1}, rank {rank}"
            check_loss(grade, oracle, step, where, rank, one["steps"][step]["loss"], loss)
        for rank in range(len(found)):
            where = f"{name_of(case)}, step {step + 1}, rank {rank}"
            check_gradients(grade, oracle, step, where, rank, found, right)
        for rank, one in enumerate(found):
            where = f"{name_of(case)}, step {step + 1}, rank {rank}"
            check_norm(grade, oracle, where, rank, one["steps"][step], right)
        oracle.update(limited(right, case["max_norm"]))
    for rank, one in enumerate(found):
        for name, p in oracle.weights.items():
            what = f"{name_of(case)}: {name} after step {case['steps']} on rank {rank}"
            grade.compare(one["weights"][name], p.detach(), what, rtol=1e-4, atol=2e-5)
            largest = max(largest, (one["weights"][name] - p.detach()).abs().max().item())
    return largest


def check_loss(grade: Grade, oracle: Oracle, step: int, where: str, rank: int, found: float, right: float) -> None:
    if math.isclose(found, right, rel_tol=1e-4):
        return
    case, data = oracle.case, oracle.case["data"]
    texts = distinct_texts(found, right)
    says = f"{where}: backward returned {texts[0]}; the mean loss over the batch is {texts[1]}."
    means = [oracle.loss(step, share).item() for share in oracle.shares]
    own, num = means[rank // case["tensor"]], len(oracle.shares[rank // case["tensor"]])
    ways = [
        ("own-loss", own, f"That is the mean over its {count(num, 'sample')} of {case['samples']}."),
        ("own-loss", own * num / case["samples"], "That is what its own samples contribute."),
        ("shares-are-equal", sum(means) / data, f"That is the mean of the {data} data ranks' means."),
        ("sum-is-average", sum(means), f"That is the sum of the {data} data ranks' means."),
        (
            "bias-on-every-rank",
            oracle.loss(step, way="bias-on-every-rank").item(),
            f"That is the loss if the bias of `down` is added {case['tensor']} times.",
        ),
    ]
    for id, value, words in ways:
        if math.isclose(found, value, rel_tol=1e-4):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)


def check_gradients(
    grade: Grade, oracle: Oracle, step: int, where: str, rank: int, found: list[dict[str, Any]], right: Table
) -> None:
    got = found[rank]["steps"][step]["gradients"]
    if "spare" in got:
        text = f"{where}: spare has a gradient, although no sample uses it; its norm is {got['spare'].norm():.2g}."
        grade.reject("unused-updated", f"{text} AdamW's weight decay would change it; in one process it is skipped.")
    if set(got) != set(right):
        names = sorted(set(right) ^ set(got))
        id = "hint-missing" if names == ["hint"] else "unknown"
        grade.reject(id, f"{where}: on some rank, .grad of {', '.join(names[:4])} is None; the batch uses it.")
    if any(not close(got[name], g) for name, g in right.items()):
        explain_gradients(grade, oracle, step, where, rank, got, right)


def explain_gradients(
    grade: Grade, oracle: Oracle, step: int, where: str, rank: int, got: Table, right: Table
) -> NoReturn:
    case = oracle.case
    data, tensor = case["data"], case["tensor"]
    wrong = [name for name, g in right.items() if not close(got[name], g)]
    off = max((got[name] - right[name]).abs().max().item() for name in wrong if got[name].shape == right[name].shape)
    says = (
        f"{where}: the loss is right; {len(wrong)} of {len(right)} gradients differ from one process's by up to "
        f"{off:.2g} ({', '.join(wrong[:3])}{', …' * (len(wrong) > 3)})."
    )
    copies = [name for name in right if dim_of(name) is None]
    shares = [oracle.gradients(step, share) for share in oracle.shares]
    sums = {name: sum(filled(one, name, right) for one in shares) for name in right}
    own = {name: filled(shares[rank // tensor], name, right) for name in right}
    num = len(oracle.shares[rank // tensor])
    tables: list[tuple[str, list[str], Callable[[str], Tensor], str]] = [
        ("sum-is-average", list(right), sums.__getitem__, f"They are the sum of the {data} data ranks' means."),
        (
            "shares-are-equal",
            list(right),
            lambda name: sums[name] / data,
            f"They are the mean of the {data} data ranks' means, whose shares have "
            f"{', '.join(str(len(share)) for share in oracle.shares)} samples.",
        ),
        ("not-averaged", list(right), own.__getitem__, f"They are those of the rank's own {count(num, 'sample')}."),
        (
            "not-averaged",
            list(right),
            lambda name: own[name] * num / case["samples"],
            f"They are what the rank's own {count(num, 'sample')} contribute.",
        ),
        (
            "divided-by-the-world",
            list(right),
            lambda name: right[name] / tensor,
            f"They are {1 / tensor:.3f} times as large.",
        ),
        (
            "divided-by-the-world",
            list(right),
            lambda name: sums[name] / (data * tensor),
            f"They are the sum of the {data} data ranks' means, divided by {data * tensor}.",
        ),
        (
            "divided-again",
            list(right),
            lambda name: right[name] / data,
            f"They are {1 / data:.3f} times as large.",
        ),
    ]
    for id, names, way, words in tables:
        if all(close(got[name], way(name)) for name in names):
            grade.reject(id, f"{says} {words}")
    words = f"Those of {', '.join(wrong[:2])} are {tensor}.000 times as large."
    if set(wrong) <= set(copies) and all(close(got[name], tensor * right[name]) for name in wrong):
        grade.reject("copies-added-up", f"{says} {words}")
    if wrong == ["embedding.weight"] and close(got[wrong[0]], data * right[wrong[0]]):
        grade.reject("tied-twice", f"{says} It is {data}.000 times as large; the output has the same weight.")
    index = rank % tensor
    partial = oracle.gradients(step, None, "enter-forgotten", index)
    if all(close(got[name], partial[name]) for name in copies):
        words = "They contain only what this rank's part of the inner width adds to the gradient that comes back."
        grade.reject("enter-forgotten", f"{says} {words}")
    doubled = oracle.gradients(step, None, "leave-reduces-twice")
    if all(close(got[name], doubled[name]) for name in right):
        words = f"What comes back through the layers is {tensor} times as large in each of them."
        grade.reject("leave-reduces-twice", f"{says} {words}")
    grade.reject("unknown", says)


def filled(gradients: Table, name: str, right: Table) -> Tensor:
    return gradients.get(name, torch.zeros_like(right[name]))


def check_norm(grade: Grade, oracle: Oracle, where: str, rank: int, one: dict[str, Any], right: Table) -> None:
    norm = length(right)
    case = oracle.case
    if not math.isclose(one["norm"], norm, rel_tol=1e-4):
        explain_norm(grade, case, where, rank, one["norm"], right, norm)
    before, after, factor = one["before"], one["after"], min(1.0, case["max_norm"] / norm)
    if any(not close(after[name], g * factor) for name, g in before.items()):
        lengths = [length(before), length(after), length(before) * factor]
        says = f"{where}: clip returned the right norm {norm:.4g}. This rank's gradients were {lengths[0]:.4g} long "
        says += f"before it and are {lengths[1]:.4g} long after it, expected {lengths[2]:.4g}."
        if all(close(after[name], g) for name, g in before.items()):
            grade.reject("not-clipped", says)
        grade.reject("unknown", says)


def explain_norm(
    grade: Grade, case: dict[str, Any], where: str, rank: int, found: float, right: Table, norm: float
) -> NoReturn:
    index, size = rank % case["tensor"], case["tensor"]
    copies = length({name: g for name, g in right.items() if dim_of(name) is None})
    split = {name: g for name, g in right.items() if dim_of(name) is not None}
    parts = [length({name: g.tensor_split(size, dim_of(name))[k] for name, g in split.items()}) for k in range(size)]
    texts = distinct_texts(found, norm, 4)
    says = f"{where}: clip returned {texts[0]}; the norm of the whole gradient is {texts[1]}."
    tied = right["embedding.weight"].norm().item()
    total = math.hypot(*parts)
    ways = [
        ("norm-of-own-part", math.hypot(parts[index], copies), "That is the norm of what this rank has."),
        (
            "copies-counted-again",
            math.hypot(total, math.sqrt(size) * copies),
            f"That counts {size} times what all tensor ranks hold whole.",
        ),
        (
            "summed-over-the-world",
            math.sqrt(case["data"]) * math.hypot(total, math.sqrt(size) * copies),
            f"That counts each part {case['data']} times, and what all ranks hold {case['data'] * size} times.",
        ),
        (
            "summed-over-the-world",
            math.hypot(math.sqrt(case["data"]) * total, copies),
            f"That counts each part {case['data']} times.",
        ),
        ("sum-of-norms", sum(math.hypot(one, copies) for one in parts), "That is the sum of the ranks' norms."),
        ("copies-forgotten", total, "That leaves out what all tensor ranks hold whole."),
        ("tied-twice", math.hypot(norm, tied), "That counts the tied weight twice."),
    ]
    for id, value, words in ways:
        if math.isclose(found, value, rel_tol=1e-4):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def sent_bytes(world: Any, number: int, case: dict[str, Any]) -> float:
    """Return the bytes that rank 0 sends in the first step's backward of a case, in rings."""
    calls = world.calls[0]
    marks = [n for n, call in enumerate(calls) if call.numel == MARK and "int8" in call.dtype]
    first, total = 2 * case["steps"] * number, 0.0
    for call in calls[marks[first] + 1 : marks[first + 1]]:
        n = len(call.group)
        kinds = {"all_reduce": 2 * (n - 1) / n, "all_gather": n - 1, "send": 1.0, "recv": 0.0}
        total += call.num_bytes * next((kinds[kind] for kind in kinds if kind in call.op), (n - 1) / n)
    return total


def check_sent(grade: Grade, world: Any, number: int, case: dict[str, Any]) -> None:
    data, tensor = case["data"], case["tensor"]
    x = 4 * -(-case["samples"] // data) * TOKENS * case["width"]
    trained = 4 * sum(part_numel(case, name, value) for name, value in weights(case).items() if name not in FROZEN)
    on_tensor = 2 * case["num_layers"] * 2 * (tensor - 1) / tensor * x
    on_data = 2 * (data - 1) / data * trained
    sent, expected = sent_bytes(world, number, case), on_tensor + on_data
    says = (
        f"{name_of(case)}: rank 0 sent {sent:,.0f} bytes in backward. Two all-reduces in each layer have "
        f"{on_tensor:,.0f} and those of the gradients {on_data:,.0f}."
    )
    if sent > 2 * expected:
        grade.reject("sends-weights", says)
    if sent > 1.1 * expected + 4 * 64:
        grade.note(says)

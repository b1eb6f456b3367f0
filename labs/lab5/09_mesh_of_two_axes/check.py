"""Compare the groups and the samples with the mesh, and the gradients with a whole block in one process."""

import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from ranks import Table, batch, cut, fair, tensor_group, weights
from torch import Tensor, nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

NORM = ("norm.weight", "norm.bias")
SPLIT = ("up.weight", "up.bias", "down.weight")
WHOLE = ("bias", "hint")
MESHES = {4: [(2, 2), (1, 4)], 6: [(2, 3)]}


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    largest = 0.0
    for size, meshes in MESHES.items():
        cases = [draw_case(draw, grade.seed % 10**6, *mesh) for mesh in meshes]
        world = grade.world(size, cases, seconds=4.0)
        for number, case in enumerate(cases):
            found = [value[number] for value in world.values]
            check_groups(grade, case, found)
            check_samples(grade, case, found)
            check_waited(grade, world)
            largest = max(largest, check_gradients(grade, case, found))
    grade.measured("gradients on 3 meshes, compared with one process", f"largest difference {largest:.1e}")
    for rank in (0, 1, 2):
        where = ", ".join(f"{axis} {found[rank][axis]}" for axis in ("data", "tensor"))
        grade.measured(f"groups of rank {rank} on a mesh of {case['data']} x {case['tensor']}", where)
    grade.predicted("groups", 8 + 4)
    grade.predicted("highest", max(rank for rank in range(32) if rank % 8 == 21 % 8))


def draw_case(draw: random.Random, seed: int, data: int, tensor: int) -> dict[str, Any]:
    """Draw sizes. In the world of 4, the tensor axis divides the inner width: mixed-up parts have equal shapes.

    On the square mesh all samples have hints: twice too large would otherwise have two reasons.
    """
    return {
        "data": data,
        "tensor": tensor,
        "samples": data * draw.choice([2, 3]),
        "tokens": draw.choice([5, 7]),
        "width": draw.choice([3, 5]),
        "inner": 8 if data * tensor == 4 else draw.choice([7, 11]),
        "hinted": None if data == tensor else 0,
        "seed": seed + 10 * data + tensor,
    }


def name_of(case: dict[str, Any]) -> str:
    return f"Mesh of {case['data']} (data) x {case['tensor']} (tensor)"


# ---- groups and samples ----------------------------------------------------------------------------------------------


def check_groups(grade: Grade, case: dict[str, Any], found: list[dict[str, Any]]) -> None:
    size = case["tensor"]
    expected = [
        {"data": list(range(rank % size, len(found), size)), "tensor": tensor_group(rank, size)}
        for rank in range(len(found))
    ]
    wrong = [
        rank for rank, one in enumerate(found) if any(one[axis] != expected[rank][axis] for axis in ("data", "tensor"))
    ]
    if wrong:
        explain_groups(grade, case, found, expected, wrong[0])


def explain_groups(
    grade: Grade, case: dict[str, Any], found: list[dict[str, Any]], expected: list[dict[str, Any]], rank: int
) -> NoReturn:
    one, right = found[rank], expected[rank]
    says = f"{name_of(case)}: rank {rank} has the data index {rank // case['tensor']} and the tensor index "
    says += f"{rank % case['tensor']}. Its groups are: data {one['data'] or 'none'}, tensor {one['tensor'] or 'none'}; "
    says += f"expected: data {right['data']}, tensor {right['tensor']}."
    if any(rank not in one[axis] for axis in ("data", "tensor")):
        grade.reject("not-a-member", says)
    if all(
        one["data"] == right["tensor"] and one["tensor"] == right["data"]
        for one, right in zip(found, expected, strict=True)
    ):
        grade.reject("axes-swapped", says)
    other = [
        {
            "data": list(range(rank // case["data"] * case["data"], (rank // case["data"] + 1) * case["data"])),
            "tensor": list(range(rank % case["data"], len(found), case["data"])),
        }
        for rank in range(len(found))
    ]
    if all(one[axis] == way[axis] for one, way in zip(found, other, strict=True) for axis in ("data", "tensor")):
        grade.reject("axes-swapped", says)
    if all(one[axis] == list(range(len(found))) for one in found for axis in ("data", "tensor")):
        grade.reject("one-group-for-all", says)
    grade.reject("unknown", says)


def check_samples(grade: Grade, case: dict[str, Any], found: list[dict[str, Any]]) -> None:
    read = [one["samples"] for one in found]
    if not fair(read, case):
        explain_samples(grade, case, read)


def explain_samples(grade: Grade, case: dict[str, Any], read: list[list[int]]) -> NoReturn:
    size, num = case["tensor"], case["samples"]
    listed = "; ".join(f"rank {rank} {samples}" for rank, samples in enumerate(read))
    says = f"{name_of(case)}, {num} samples: {listed}."
    if all(samples == list(range(num)) for samples in read):
        grade.reject("reads-everything", says)
    if any(samples != read[rank // size * size] for rank, samples in enumerate(read)):
        rank = next(rank for rank, samples in enumerate(read) if samples != read[rank // size * size])
        other = rank // size * size
        text = f"{says} Ranks {other} and {rank} hold parts of the same copy of the model"
        by_tensor = all(samples == read[rank % size] for rank, samples in enumerate(read))
        if by_tensor:
            grade.reject("reads-by-tensor-index", f"{text}; ranks 0 and {size} read the same samples.")
        grade.reject("reads-by-world-rank", f"{text} and read different samples.")
    never = sorted(set(range(num)) - {sample for samples in read for sample in samples})
    if never:
        grade.reject(
            "share-of-the-world", f"{says} {count(len(never), 'sample')} of {num} are read by no rank: {never}."
        )
    grade.reject("unknown", says)


def check_waited(grade: Grade, world: Any) -> None:
    for rank, calls in enumerate(world.calls):
        started = [call for call in calls if call.is_async]
        waited = sum(call.waited for call in started)
        if waited < len(started):
            text = f"Rank {rank} started {count(len(started), 'asynchronous operation')} and waited for {waited}."
            grade.reject("not-waited", text)


# ---- gradients -------------------------------------------------------------------------------------------------------


def oracle(case: dict[str, Any], hinted: list[int]) -> Table:
    """Return the gradients of the whole block for the whole batch. hinted: the samples that use the hint."""
    p = {name: value.requires_grad_(name != "scale") for name, value in weights(case).items()}
    x, y = batch(case)
    normalized = nn.functional.layer_norm(x, [case["width"]], p["norm.weight"], p["norm.bias"])
    inner = torch.tanh(nn.functional.linear(normalized, p["up.weight"], p["up.bias"]))
    out = nn.functional.linear(inner, p["down.weight"]) + p["bias"]
    uses_hint = torch.zeros(case["samples"], 1, 1).index_fill(0, torch.tensor(hinted), 1.0)
    out = out + uses_hint * p["hint"]
    (p["scale"] * out - y).square().mean().backward()
    return {name: one.grad for name, one in p.items() if one.grad is not None}


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def check_gradients(grade: Grade, case: dict[str, Any], found: list[dict[str, Any]]) -> float:
    everything = list(range(case["samples"]))
    hinted = next((one["samples"] for one in found if case["hinted"] in one["samples"]), everything)
    whole, largest = oracle(case, hinted), 0.0
    for rank, one in enumerate(found):
        right = {name: cut(name, g, rank % case["tensor"], case["tensor"]) for name, g in whole.items()}
        missing = [name for name in right if name not in one["after"]]
        if missing:
            text = f"{name_of(case)}: after reduce_gradients, {missing[0]} has no gradient on rank {rank}"
            grade.reject("unused-skipped", f"{text}. Other ranks' samples have used it.")
        wrong = [name for name, g in right.items() if not close(one["after"][name], g)]
        if wrong:
            explain(grade, case, found, rank, right, wrong)
        largest = max(largest, max((one["after"][name] - g).abs().max().item() for name, g in right.items()))
    return largest


class Local:
    """The gradients before the reduction, and what each misconception makes of them on one rank."""

    def __init__(self, case: dict[str, Any], found: list[dict[str, Any]], rank: int, right: Table) -> None:
        self.case, self.found, self.rank, self.right = case, found, rank, right
        size = case["tensor"]
        self.data = list(range(rank % size, len(found), size))
        self.tensor = tensor_group(rank, size)

    def total(self, name: str, ranks: list[int]) -> Tensor:
        parts = [self.found[rank]["before"].get(name, torch.zeros_like(self.right[name])) for rank in ranks]
        same = [part for part in parts if part.shape == self.right[name].shape]
        return sum(same, torch.zeros_like(self.right[name]))

    def own(self, name: str) -> Tensor:
        return self.total(name, [self.rank])

    def mean(self, name: str, ranks: list[int]) -> Tensor:
        return self.total(name, ranks) / len(ranks)


def listed(names: list[str]) -> str:
    return f"Those of {', '.join(names)} are"


def explain(
    grade: Grade, case: dict[str, Any], found: list[dict[str, Any]], rank: int, right: Table, wrong: list[str]
) -> NoReturn:
    local, everyone = Local(case, found, rank, right), list(range(len(found)))
    data, tensor = case["data"], case["tensor"]
    off = max((found[rank]["after"][name] - right[name]).abs().max().item() for name in wrong)
    says = (
        f"{name_of(case)}: on rank {rank}, the gradients of {', '.join(wrong)} differ from one process's by up to "
        f"{off:.2g}."
    )

    def fits(names: list[str], way: Callable[[str], Tensor]) -> bool:
        return bool(names) and all(close(found[rank]["after"][name], way(name)) for name in names)

    kinds = {"norm": NORM, "split": SPLIT, "whole": WHOLE}
    of = {kind: [name for name in wrong if name in names] for kind, names in kinds.items()}
    ways: list[tuple[str, list[str], Callable[[str], Tensor], str]] = [
        ("sum-is-average", list(right), lambda name: data * right[name], f"They are {data}.000 times as large."),
        (
            "divided-by-the-world",
            list(right),
            lambda name: right[name] / tensor,
            f"They are {1 / tensor:.3f} times as large: sums over {data} ranks, divided by {data * tensor}.",
        ),
        (
            "averages-with-everyone",
            of["split"],
            lambda name: local.mean(name, everyone),
            f"{listed(of['split'])} the mean over all {len(found)} ranks, which hold {tensor} different parts.",
        ),
        (
            "averages-over-tensor",
            of["split"],
            lambda name: local.mean(name, local.tensor),
            f"{listed(of['split'])} the mean over the tensor ranks {local.tensor}, which hold different parts.",
        ),
        (
            "adds-everyone",
            of["split"],
            lambda name: local.total(name, everyone) / data,
            f"{listed(of['split'])} the sum over all {len(found)} ranks, divided by {data}.",
        ),
        (
            "divided-by-users",
            ["hint"] if wrong == ["hint"] else [],
            lambda name: data * right[name],
            f"They are {data}.000 times as large: a sum over {data} data ranks, of which one had a hint.",
        ),
        (
            "copies-summed",
            of["whole"],
            lambda name: tensor * right[name],
            f"{listed(of['whole'])} {tensor}.000 times as large: each of {tensor} tensor ranks had it all already.",
        ),
        (
            "slices-not-added",
            of["norm"],
            lambda name: local.mean(name, local.data),
            f"{listed(of['norm'])} those of the tokens of tensor index {rank % tensor} alone.",
        ),
        (
            "slices-averaged",
            of["norm"],
            lambda name: right[name] / tensor,
            f"{listed(of['norm'])} {1 / tensor:.3f} times as large.",
        ),
        ("not-averaged", of["split"] or of["whole"], local.own, "They are those of this rank's own samples."),
    ]
    for id, names, way, words in ways:
        if fits(names, way):
            grade.reject(id, f"{says} {words}")
    grade.reject("unknown", says)

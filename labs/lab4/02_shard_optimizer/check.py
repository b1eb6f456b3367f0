"""Compare each step with torch's Adam in one process, the memory with a shard's, and the bytes with an all-gather's."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from ranks import LR, MARK, STEPS, gradients, make_model
from torch import Tensor, nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.outcome import Call, World
from frog.learn.grader.words import count

PREDICTED = {"parameters": [("weight", [100, 300], "trained"), ("scale", [1], "trained")], "tied": False}
TINY = {"parameters": [("a", [2], "trained"), ("b", [1], "trained"), ("c", [], "trained")], "tied": True}
"""As many elements as two shards of a world of three: the third rank has nothing but padding."""

UNLIMITED = 1 << 30
"""Bytes that a rank may hold where its memory is not judged."""


def check(grade: Grade) -> None:
    drawn = draw_case(random.Random(grade.seed))
    for size in (3, 2):
        most = 12 * -(-numel(drawn) // size) + 100  # a shard, its moments, and step counters
        named = {"seed": grade.seed % 1_000_000, "most": UNLIMITED}
        cases = [named | drawn, named | TINY, named | PREDICTED]
        if size == 3:
            cases[0]["most"] = most
        world = grade.world(size, {"cases": cases})
        runs = [Run(case, world, number) for number, case in enumerate(cases)]
        for run in runs:
            check_weights(grade, run)
        check_memory(grade, runs[0])
        check_bytes(grade, runs[0])
        if size == 3:
            report(grade, runs[0], runs[-1])


def report(grade: Grade, drawn: "Run", fixed: "Run") -> None:
    """Report what the world of three measured."""
    grade.predicted("moments", moments_of(fixed.shard_size))
    grade.predicted("bytes-sent", fixed.bytes_sent())
    held, formula = max(sum(one) for one in drawn.held), 12 * drawn.shard_size
    grade.measured("held between steps at world 3", f"{held:,} bytes; a shard and its moments: {formula:,}")
    grade.measured("unsharded Adam would hold", f"{8 * drawn.num:,} bytes of moments on every rank")
    if held > 1.1 * formula:
        grade.note(f"One rank holds {held / formula:.2f} times as much as a shard and its moments.")
    sent, needed = drawn.bytes_sent(), drawn.bytes_needed()
    if sent > 1.1 * needed:
        grade.note(f"A rank sends {sent / needed:.2f} times as much as one all-gather.")


def draw_case(draw: random.Random) -> dict[str, Any]:
    """Draw a model whose trained elements divide by neither 2 nor 3, and whose frozen part is larger than the rest."""
    while True:
        width = draw.randint(9, 13)
        rows, hidden = draw.randint(11, 15), draw.randint(13, 17)
        trained = [("tokens", [rows, width]), ("up", [hidden, width]), ("scale", []), ("down", [width, hidden])]
        trained += [("bias", [width])]
        parameters = [(name, shape, "trained") for name, shape in trained]
        parameters.insert(1, ("positions", [7 * rows, width], "frozen"))
        parameters.insert(3, ("unused", [draw.randint(5, 9)], "unused"))
        num = numel({"parameters": parameters})
        shards = {-(-num // 2), -(-num // 3)}
        if num % 2 and num % 3 and not shards & {torch.Size(shape).numel() for _, shape, _ in parameters}:
            return {"parameters": parameters, "tied": True}


def numel(case: dict[str, Any], kinds: tuple[str, ...] = ("trained", "unused")) -> int:
    return sum(torch.Size(shape).numel() for _, shape, kind in case["parameters"] if kind in kinds)


def moments_of(size: int) -> int:
    """Take a step with torch's Adam and return the bytes of its moments of `size` elements."""
    shard = nn.Parameter(torch.zeros(size))
    shard.grad = torch.ones(size)
    adam = torch.optim.Adam([shard])
    adam.step()
    return sum(adam.state[shard][name].nbytes for name in ("exp_avg", "exp_avg_sq"))


class Run:
    """One case in one world."""

    def __init__(self, case: dict[str, Any], world: World, number: int) -> None:
        self.case, self.size = case, world.size
        self.num = numel(case)
        self.shard_size = -(-self.num // self.size)
        values = [rank[number] for rank in world.values]
        self.steps = [[self.flat(step) for step in value["steps"]] for value in values]
        self.frozen = [[self.flat(step, "frozen") for step in value["steps"]] for value in values]
        self.held = [value["held"] for value in values]
        self.calls = [split(calls)[number] for calls in world.calls]

    def flat(self, tensors: list[Tensor], kind: str = "") -> Tensor:
        """Join a step's parameters of this kind end to end; by default those that are not frozen."""
        kinds = [one for _, _, one in self.case["parameters"]]
        own = [t.flatten() for t, one in zip(tensors, kinds, strict=True) if (one == "frozen") == (kind == "frozen")]
        return torch.cat([*own, torch.zeros(0)])

    def bytes_sent(self) -> float:
        """Return the bytes that a rank sends in a step, the most of all ranks, with the usual algorithms."""
        return max(sum(cost(call, self.size) for call in calls) for calls in self.calls) / STEPS

    def bytes_needed(self) -> float:
        return 4 * self.shard_size * (self.size - 1)


def split(calls: list[Call]) -> list[list[Call]]:
    cases: list[list[Call]] = [[]]
    for call in calls:
        if call.op == "all_reduce" and call.numel == MARK and "int8" in call.dtype:
            cases.append([])
        else:
            cases[-1].append(call)
    return cases


def cost(call: Call, size: int) -> float:
    """Return the bytes that a rank sends for an operation, as the ring algorithms of NCCL and gloo do."""
    if call.op.startswith("all_gather"):
        return call.num_bytes * (size - 1)
    if call.op.startswith("all_reduce"):
        return 2 * call.num_bytes * (size - 1) / size
    if call.op in ("send", "isend"):
        return call.num_bytes
    return 0 if call.op in ("recv", "irecv") else call.num_bytes * (size - 1) / size


# ---- the weights -----------------------------------------------------------------------------------------------------


def adam(weights: Tensor, given: list[Tensor], lr: float = LR, starts_again: bool = False) -> list[Tensor]:
    """Return the weights after each step of torch's Adam in one process."""
    one, steps = nn.Parameter(weights.clone()), []
    optimizer = torch.optim.Adam([one], lr=lr)
    for gradient in given:
        if starts_again:
            optimizer = torch.optim.Adam([one], lr=lr)
        one.grad = gradient.clone()
        optimizer.step()
        steps.append(one.detach().clone())
    return steps


class Numbers(NamedTuple):
    """A case in one process: padded to whole shards."""

    start: Tensor
    gradients: list[Tensor]
    right: list[Tensor]
    unused: slice


def oracle(run: Run) -> Numbers:
    padding = run.size * run.shard_size - run.num
    start = run.flat([p.detach() for p in make_model(run.case).parameters()])
    start = nn.functional.pad(start, (0, padding))
    given, unused, place = [], slice(0, 0), 0
    for _, shape, kind in run.case["parameters"]:
        length = torch.Size(shape).numel() if kind != "frozen" else 0
        unused = slice(place, place + length) if kind == "unused" else unused
        place += length
    for step in range(STEPS):
        shapes = [shape for _, shape, _ in run.case["parameters"]]
        parts = [torch.zeros(s) if g is None else g for g, s in zip(gradients(run.case, step), shapes, strict=True)]
        given.append(nn.functional.pad(run.flat(parts), (0, padding)))
    return Numbers(start, given, adam(start, given), unused)


def ways(run: Run, numbers: Numbers) -> Iterator[tuple[str, list[list[Tensor]]]]:
    """Yield each misconception's weights: for each rank, after each step."""
    start, given, right, _ = numbers
    size, length = run.size, run.shard_size

    def everywhere(steps: list[Tensor]) -> list[list[Tensor]]:
        return [steps] * size

    own = [right_within(start, right, slice(r * length, (r + 1) * length)) for r in range(size)]
    yield "never-gathered", own
    yield "result-dropped", everywhere([start] * STEPS)
    yield "moments-start-again", everywhere(adam(start, given, starts_again=True))
    yield "averages-weights", everywhere(averaged(start, right, size, keeps_own=True))
    yield "averages-weights.2", everywhere(averaged(start, right, size, keeps_own=False))
    first = [g[:length].repeat(size) for g in given]
    yield "same-shard", everywhere(adam(start, first))
    yield "same-shard.2", everywhere(adam(start[:length].repeat(size), first))
    yield "tail-lost", everywhere(right_within(start, right, slice(0, run.num // size * size)))
    yield "skips-none", everywhere(adam(start, [shifted(g, numbers.unused) for g in given]))
    yield "lr-scaled", everywhere(adam(start, given, lr=LR * size))
    yield "lr-scaled.2", everywhere(adam(start, given, lr=LR / size))
    yield "divided-again", everywhere(adam(start, [g / size for g in given]))


def right_within(start: Tensor, right: list[Tensor], part: slice) -> list[Tensor]:
    """Return the weights after each step, if only this part is updated."""
    steps = []
    for weights in right:
        one = start.clone()
        one[part] = weights[part]
        steps.append(one)
    return steps


def averaged(start: Tensor, right: list[Tensor], size: int, keeps_own: bool) -> list[Tensor]:
    """Return the weights if all ranks' are averaged after each has updated its shard: an update is 1/size as large.

    keeps_own: a rank continues from its own shard, not from the average.
    """
    steps, before = [], start
    for k, weights in enumerate(right):
        change = weights - (before if keeps_own else right[k - 1] if k else start)
        before = before + change / size
        steps.append(before)
    return steps


def shifted(gradient: Tensor, hole: slice) -> Tensor:
    """Leave a part out, so that all later values move up."""
    left = torch.cat([gradient[: hole.start], gradient[hole.stop :]])
    return nn.functional.pad(left, (0, len(gradient) - len(left)))


def close(found: Tensor, expected: Tensor) -> Tensor:
    return torch.isclose(found, expected, rtol=1e-4, atol=1e-5)


def check_weights(grade: Grade, run: Run) -> None:
    numbers = oracle(run)
    for step in range(STEPS):
        for rank in range(run.size):
            off = ~close(run.steps[rank][step], numbers.right[step][: run.num])
            if off.any():
                explain(grade, run, numbers, rank, step, off)
    for rank in range(run.size):
        if not torch.equal(run.steps[rank][-1], run.steps[0][-1]):
            off = (run.steps[rank][-1] - run.steps[0][-1]).abs().max()
            text = f"after {STEPS} steps the weights of ranks 0 and {rank} differ by up to {off:.1g}."
            grade.reject("unknown", f"{where(run)}: {text} They must be equal, bit for bit.")
        if not torch.equal(run.frozen[rank][-1], run.frozen[rank][0]):
            grade.reject("unknown", f"{where(run)}: the frozen parameter changed on rank {rank}.")


def where(run: Run) -> str:
    return f"World of {run.size}, {count(run.num, 'trained element')} (shards of {run.shard_size})"


EVIDENCE = {
    "never-gathered": "Every rank has its own shard right, and the others as they were at the beginning.",
    "result-dropped": "No weight has changed on any rank.",
    "moments-start-again": "They are the weights of an Adam that is new in each step.",
    "averages-weights": "Each step changed the weights by 1/{size} of Adam's update.",
    "same-shard": "They are what you get if every rank uses the gradient of shard 0.",
    "tail-lost": "The last {tail} never change.",
    "skips-none": "They are right before the parameter without a gradient; after it, each element was updated with the "
    "gradient of a later one.",
    "divided-again": "They are those of gradients divided by {size}. Adam hides a factor, except in gradients as "
    "small as its eps.",
    "lr-scaled": "They are those of one process with {factor} the learning rate.",
}


def explain(grade: Grade, run: Run, numbers: Numbers, rank: int, step: int, off: Tensor) -> NoReturn:
    says = f"{where(run)}: after step {step + 1}, {int(off.sum())} elements on rank {rank} differ from one process's."
    late = sum(call.is_async and not call.waited for call in run.calls[rank])
    if late:
        text = f"You started {count(late, 'operation')} on rank {rank} and never waited for them."
        grade.reject("not-waited", f"{says} {text}")
    reduces = any(call.op.startswith("all_reduce") for call in run.calls[rank])
    for id, way in ways(run, numbers):
        if id.startswith("averages-weights") and not reduces:
            continue  # a smaller learning rate gives the same numbers
        pairs = [(run.steps[r][k], way[r][k][: run.num]) for r in range(run.size) for k in range(STEPS)]
        if all(bool(close(found, expected).all()) for found, expected in pairs):
            name, factor = id.split(".")[0], f"1/{run.size} of" if id.endswith(".2") else f"{run.size} times"
            tail = count(run.num % run.size, "element")
            grade.reject(name, f"{says} {EVIDENCE[name].format(size=run.size, tail=tail, factor=factor)}")
    found, expected = run.steps[rank][step], numbers.right[step][: run.num]
    grade.reject_different(
        found, expected, f"{where(run)}: the weights, end to end, on rank {rank} after step {step + 1}"
    )


# ---- the memory and the traffic --------------------------------------------------------------------------------------


def check_memory(grade: Grade, run: Run) -> None:
    """Judge the memory in a world of three; in a world of two, two copies of a shard are as large as the whole."""
    if run.size < 3:
        return
    totals, shard, moments = [sum(one) for one in run.held], 4 * run.shard_size, 8 * numel(run.case, ("trained",))
    says = f"{where(run)}: the weights are right, but between two steps"
    if moments <= totals[0] and max(totals[1:]) < shard:
        others = " and ".join(f"{one:,}" for one in totals[1:])
        text = f"your optimizer holds {totals[0]:,} bytes on rank 0, and {others} on the other ranks."
        grade.reject("one-rank-keeps-all", f"{says} {text}")
    for rank, pieces in enumerate(run.held):
        total = f"your optimizer holds {sum(pieces):,} bytes on rank {rank}"
        everything = -(-numel(run.case, ("trained", "unused", "frozen")) // run.size)
        if pieces.count(4 * everything) >= 2:
            num = numel(run.case, ("frozen",))
            text = f"in pieces of {4 * everything:,}: shards of all {run.num + num} elements, {num} of them frozen."
            grade.reject("frozen-has-moments", f"{says} {total}, {text}")
        whole = [piece for piece in pieces if piece >= 4 * run.num]
        if sum(pieces) >= moments and pieces.count(shard) < 2:
            text = f"All moments together have {moments:,}, a shard's {2 * shard:,}."
            grade.reject("every-rank-keeps-all", f"{says} {total}. {text}")
        if whole and pieces.count(shard) >= 2:
            kept, more = count(pieces.count(shard), "piece"), " and ".join(f"{piece:,}" for piece in whole)
            text = f"{kept} of {shard:,}, a shard's size, and {more} in one piece, enough for all {run.num} elements."
            grade.reject("whole-kept", f"{says} {total}: {text}")
        if sum(pieces) >= 2 * 3 * shard:
            text = f"A shard of the weights and its two moments have {3 * shard:,}."
            grade.reject("unknown", f"{says} {total}. {text}")


def check_bytes(grade: Grade, run: Run) -> None:
    sent, needed = run.bytes_sent(), run.bytes_needed()
    if sent < 1.9 * needed:
        return
    ops = sorted({call.op for call in run.calls[0]})
    says = (
        f"{where(run)}: the weights are right, but in a step a rank sends {sent:,.0f} bytes ({', '.join(ops)}). "
        f"An all-gather of the shards sends {needed:,}."
    )
    gathers = any(call.op.startswith(("all_gather", "broadcast")) for call in run.calls[0])
    reduced = sum(call.numel for call in run.calls[0] if "reduce" in call.op) / STEPS
    if gathers and reduced >= run.num:
        text = f"It reduces {reduced:,.0f} elements, although the gradients are the mean already."
        grade.reject("reduces-again", f"{says} {text}")
    if not gathers and reduced >= run.num:
        grade.reject("all-reduce-for-gather", says)
    grade.reject("unknown", says)

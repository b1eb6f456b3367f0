"""Compare the shards with the whole batch's gradient in one process, and the memory of backward with the formula."""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import torch
from ranks import BACKWARD, CASE, MICRO_BATCHES, STEPS, Network, batch, loss_of
from torch import Tensor, nn

from frog.learn.grader.grade import Grade
from frog.learn.grader.outcome import Call, World
from frog.learn.grader.words import count

PREDICTED = {"num_layers": 16, "width": 30, "bias": False, "samples": 2, "odd": None}
Shards = dict[str, Tensor]


def check(grade: Grade) -> None:
    drawn = draw_case(random.Random(grade.seed))
    cases = [{"seed": grade.seed % 1_000_000 + n, **case} for n, case in enumerate((drawn, PREDICTED))]
    for size in (2, 3):
        used = [case | {"most": most_after_backward(case, size)} for case in cases[: size - 1]]
        world = grade.world(size, {"cases": used})
        runs = [Run(case, world, number) for number, case in enumerate(used)]
        for run in runs:
            check_shards(grade, run)
        if size == 3:
            check_memory(grade, runs[0])
            check_bytes(grade, runs[0])
            report(grade, *runs)


def draw_case(draw: random.Random) -> dict[str, Any]:
    """Draw layers whose sizes divide by neither 2 nor 3."""
    first, second, frozen = draw.sample(range(1, 19), 3)
    width = draw.choice([19, 23, 25])
    drawn = {"num_layers": 20, "width": width, "bias": True, "samples": draw.choice([3, 5])}
    return drawn | {"odd": [first, second, frozen]}


def report(grade: Grade, drawn: "Run", fixed: "Run") -> None:
    """Report what the world of three measured."""
    grade.predicted("held", max(sum(value["pieces"]) for value in fixed.values))
    grade.predicted("bytes-sent", fixed.bytes_sent())
    peak, formula = drawn.peak, drawn.formula
    words = "all shards, two gradients (one is the tied weight's, half complete), a padded copy, its sum and mean"
    grade.measured("most memory in backward at world 3", f"{peak:,} bytes; all gradients have {drawn.whole:,}")
    grade.measured("the formula", f"{formula:,} bytes: {words}")
    if peak > 1.25 * formula:
        grade.note(f"Backward needs {peak / formula:.2f} times as much memory as the formula says.")
    sent, needed = drawn.bytes_sent(), drawn.bytes_needed()
    if sent > 1.1 * needed:
        grade.note(f"A rank sends {sent / needed:.2f} times as much as a reduce-scatter of each gradient.")


def sizes_of(case: dict[str, Any]) -> dict[str, int]:
    return {name: p.numel() for name, p in Network(case).named_parameters() if p.requires_grad}


def most_after_backward(case: dict[str, Any], size: int) -> int:
    """Return the bytes of all of a rank's shards."""
    return 4 * sum(-(-num // size) for num in sizes_of(case).values())


class Run:
    """One case in one world."""

    def __init__(self, case: dict[str, Any], world: World, number: int) -> None:
        self.case, self.size = case, world.size
        self.values = [rank[number] for rank in world.values]
        self.sizes = sizes_of(case)
        self.tied = f"layers.{max(case['odd'][:2])}.weight" if case["odd"] else ""
        self.calls = [split(calls)[number] for calls in world.calls]
        self.peak = max(value["peak"] for value in self.values)

    def shard_size(self, name: str) -> int:
        return -(-self.sizes[name] // self.size)

    @property
    def whole(self) -> int:
        """The bytes of all gradients."""
        return 4 * sum(self.sizes.values())

    @property
    def formula(self) -> int:
        """The bytes of all shards, of one gradient with its padded copy, its sum and its mean, and of a tied gradient.

        Backward has found half of that one at the second of its layers, and completes it at the first.
        """
        largest, shards = max(self.sizes.values()), [self.shard_size(name) for name in self.sizes]
        return 4 * (sum(shards) + 2 * largest + (self.size + 2) * max(shards))

    def bytes_sent(self) -> float:
        """Return the bytes that a rank sends for a micro-batch, the most of all ranks, with the usual algorithms."""
        return max(sum(cost(call, self.size) for call in calls) for calls in self.calls) / (STEPS * MICRO_BATCHES)

    def bytes_needed(self) -> float:
        names = [name for name in self.sizes if name not in ("spare", "scale")]
        scale = self.shard_size("scale") / (STEPS * MICRO_BATCHES) if "scale" in self.sizes else 0
        return 4 * (self.size - 1) * (sum(map(self.shard_size, names)) + scale)


def split(calls: list[Call]) -> list[list[Call]]:
    cases: list[list[Call]] = [[]]
    for call in calls:
        if call.op == "all_reduce" and call.numel == CASE and "int8" in call.dtype:
            cases.append([])
        else:
            cases[-1].append(call)
    return cases


def is_mark(call: Call) -> bool:
    return call.op == "all_reduce" and call.numel == BACKWARD and "int8" in call.dtype


def cost(call: Call, size: int) -> float:
    """Return the bytes that a rank sends for an operation, as the ring algorithms of NCCL and gloo do."""
    if is_mark(call) or call.op in ("recv", "irecv"):
        return 0
    if call.op.startswith("all_gather"):
        return call.num_bytes * (size - 1)
    if call.op in ("send", "isend"):
        return call.num_bytes
    return call.num_bytes * (size - 1) / size * (2 if call.op.startswith("all_reduce") else 1)


# ---- the numbers -----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """The gradients of a step in one process: of each micro-batch and rank, and of the whole batch."""

    own: list[list[Shards]]
    whole: list[Shards]

    @property
    def right(self) -> Shards:
        return total(self.whole)


def total(parts: list[Shards]) -> Shards:
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def oracle(run: Run) -> list[Step]:
    model, steps = Network(run.case), []

    def gradient(x: Tensor, step: int, micro: int) -> Shards:
        model.zero_grad()
        loss_of(model, x, step, micro).backward()
        named = {name: p for name, p in model.named_parameters() if name in run.sizes}
        return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named.items()}

    for step in range(STEPS):
        inputs = [[batch(run.case, step, micro, rank) for rank in range(run.size)] for micro in range(MICRO_BATCHES)]
        own = [[gradient(x, step, micro) for x in ranks] for micro, ranks in enumerate(inputs)]
        whole = [gradient(torch.cat(ranks), step, micro) for micro, ranks in enumerate(inputs)]
        steps.append(Step(own, whole))
    return steps


def shards_of(run: Run, gradients: Shards, rank: int, in_front: bool = False) -> Shards:
    """Cut gradients, padded at their end or in front, into shards, and return a rank's."""
    found = {}
    for name, gradient in gradients.items():
        length = run.shard_size(name)
        padding = run.size * length - gradient.numel()
        flat = nn.functional.pad(gradient.flatten(), (padding, 0) if in_front else (0, padding))
        found[name] = flat[rank * length : (rank + 1) * length]
    return found


def scaled(gradients: Shards, factor: float) -> Shards:
    return {name: factor * gradient for name, gradient in gradients.items()}


def ways(run: Run, steps: list[Step], step: int) -> Iterator[tuple[str, list[Shards]]]:
    """Yield each misconception's shards in a step: one dict for each rank."""
    own, whole = steps[step]
    right, size = steps[step].right, run.size

    def cut(gradients: Shards) -> list[Shards]:
        return [shards_of(run, gradients, rank) for rank in range(size)]

    yield "sum-is-average", cut(scaled(right, size))
    if size != 2:
        yield "one-world-only", cut(scaled(right, size / 2))
    yield "divided-twice", cut(scaled(right, 1 / size))
    yield "last-micro-batch", cut({name: whole[-1][name] if whole[-1][name].any() else right[name] for name in right})
    again = {name: whole[0][name] if whole[1][name].any() else torch.zeros_like(right[name]) for name in right}
    yield "counts-again", cut(total([again, right]))
    mine = [total([micro[rank] for micro in own]) for rank in range(size)]
    yield "own-gradient", [shards_of(run, one, rank) for rank, one in enumerate(mine)]
    yield "own-gradient.2", [shards_of(run, scaled(one, 1 / size), rank) for rank, one in enumerate(mine)]
    yield "another-shard", cut(right)[:1] * size
    yield "another-shard.2", cut(right)[::-1]
    yield "padded-in-front", [shards_of(run, right, rank, in_front=True) for rank in range(size)]
    large = {name: g if g.numel() >= size else torch.zeros_like(g) for name, g in right.items()}
    yield "small-left-out", cut(large)
    if step > 0:
        yield "not-reset", cut(total([one.right for one in steps[: step + 1]]))
        before = steps[step - 1].right
        stale = {name: gradient if gradient.any() else before[name] for name, gradient in right.items()}
        yield "stale-shard", cut(stale)


def close(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(
        found.float(), expected, rtol=1e-4, atol=1e-5 * max(1e-3, expected.abs().max().item())
    )


def where(run: Run) -> str:
    return f"World of {run.size}"


def check_shards(grade: Grade, run: Run) -> None:
    steps = oracle(run)
    for step in range(STEPS):
        right = [shards_of(run, steps[step].right, rank) for rank in range(run.size)]
        found = [value["steps"][step] for value in run.values]
        for rank in range(run.size):
            check_form(grade, run, step, rank, found[rank], steps)
        wrong = [
            (rank, name)
            for rank in range(run.size)
            for name in right[0]
            if not close(found[rank][name], right[rank][name])
        ]
        if wrong:
            explain(grade, run, steps, step, found, wrong)


def check_form(grade: Grade, run: Run, step: int, rank: int, found: Any, steps: list[Step]) -> None:
    """Check the names and the lengths of the shards that a rank returned."""
    says = f"{where(run)}, step {step + 1}: take returned"
    if not isinstance(found, dict) or not all(isinstance(shard, Tensor) for shard in found.values()):
        grade.reject("unknown", f"{says} {type(found).__name__} on rank {rank}, expected a dict of tensors.")
    missing, extra = (
        [name for name in run.sizes if name not in found],
        [name for name in found if name not in run.sizes],
    )
    idle = [name for name, gradient in steps[step].right.items() if not gradient.any()]
    if missing:
        id = "missing-names" if set(missing) <= set(idle) and not extra else "unknown"
        text = "; no micro-batch of this step had a gradient for it" if id == "missing-names" else ""
        grade.reject(id, f"{says} {count(len(found), 'shard')} on rank {rank}, and none for {missing[0]}{text}.")
    if extra:
        text = f"a shard for {extra[0]} on rank {rank}"
        if extra == [run.tied]:
            grade.reject("tied-twice", f"{says} {text}: it is the second name of a weight that another layer has too.")
        grade.reject("unknown", f"{says} {text}.")
    for name, shard in found.items():
        length, size = run.shard_size(name), run.sizes[name]
        if shard.shape != (length,):
            is_short = shard.numel() == size // run.size
            lost = f" The last {count(size % run.size, 'element')} of each such gradient would be in no shard."
            text = f"for {name}, of {size} elements, a shard of shape {list(shard.shape)}, expected [{length}]."
            grade.reject("tail-lost" if is_short else "unknown", f"{says} {text}{lost if is_short else ''}")


EVIDENCE = {
    "sum-is-average": "They are {size}.000 times the mean over the ranks.",
    "one-world-only": "They are {size}/2 of the mean over the ranks; in a world of 2 they were right.",
    "divided-twice": "They are 1/{size} of the mean over the ranks.",
    "last-micro-batch": "They are the mean of the last micro-batch alone.",
    "counts-again": "The first micro-batch is in them twice.",
    "own-gradient": "They come from the rank's own micro-batches only.",
    "own-gradient.2": "They come from the rank's own micro-batches only, divided by {size}.",
    "another-shard": "Each rank has the shard that belongs to rank 0.",
    "another-shard.2": "Rank 0 has the shard of rank {last}, and rank {last} that of rank 0.",
    "padded-in-front": "Their gradients begin with the padding, and do not end with it.",
    "small-left-out": "They are those of gradients with fewer elements than there are ranks, and are zero.",
    "not-reset": "They are the sum of both steps.",
    "stale-shard": "They are those of step 1, although no micro-batch of this step used these parameters.",
}


def explain(
    grade: Grade, run: Run, steps: list[Step], step: int, found: list[Shards], wrong: list[tuple[int, str]]
) -> NoReturn:
    rank, name = wrong[0]
    num = sum(one == rank for one, _ in wrong)
    says = f"{where(run)}, step {step + 1}: on rank {rank}, {num} of {len(run.sizes)} shards "
    says += f"{'is' if num == 1 else 'are'} wrong ({name} is the first)."
    late = sum(call.is_async and not call.waited for call in run.calls[rank])
    if late:
        text = f"You started {count(late, 'operation')} and never waited for them."
        grade.reject("not-waited", f"{says} {text}")
    for id, way in ways(run, steps, step):
        if all(close(found[r][name], way[r][name]) for r in range(run.size) for name in run.sizes):
            grade.reject(id.split(".")[0], f"{says} {EVIDENCE[id].format(size=run.size, last=run.size - 1)}")
    expected = shards_of(run, steps[step].right, rank)[name]
    grade.reject_different(
        found[rank][name], expected, f"{where(run)}, step {step + 1}, rank {rank}: the shard of {name}"
    )


# ---- the memory and the traffic --------------------------------------------------------------------------------------


def check_memory(grade: Grade, run: Run) -> None:
    """Reject a rank that holds as much as all gradients. In a world of two the formula is too close to that."""
    if run.peak < run.whole:
        return
    rank = max(range(run.size), key=lambda rank: run.values[rank]["peak"])
    value = run.values[rank]
    says = (
        f"{where(run)}: the shards are right, but during backward rank {rank} holds up to {value['peak']:,} bytes. All "
        f"gradients have {run.whole:,}; {run.formula:,} are enough for all shards and what one reduction needs."
    )
    calls = run.calls[rank]
    inside = calls[: next(n for n, call in enumerate(calls) if is_mark(call))]
    if not inside:
        num = sum(not is_mark(call) for call in calls)
        text = f"None of your {count(num, 'operation')} began before the first backward had ended."
        grade.reject("reduced-after-backward", f"{says} {text}")
    if value["in_grad"] > run.whole / 2:
        text = f"When backward has ended, the parameters' .grad hold {value['in_grad']:,} bytes."
        grade.reject("grad-kept", f"{says} {text}")
    large = [size for size in value["pieces"] if size >= 4 * max(run.sizes.values())]
    started = sum(call.is_async for call in inside)
    if len(large) > run.case["num_layers"] / 2:
        text = f"When backward has ended, {len(large)} tensors with as many elements as a whole weight are in memory"
        if started:
            id, more = "waits-at-the-end", f"; {count(started, 'asynchronous operation')} began in the first backward."
        else:
            id, more = "memory-referenced", "." if value["in_grad"] else ", although every .grad is None."
        grade.reject(id, f"{says} {text}{more}")
    grade.reject("unknown", says)


def check_bytes(grade: Grade, run: Run) -> None:
    sent, needed = run.bytes_sent(), run.bytes_needed()
    if sent < 1.9 * needed:
        return
    ops = sorted({call.op for call in run.calls[0] if not is_mark(call)})
    says = (
        f"{where(run)}: the shards are right, but for each micro-batch a rank sends {sent:,.0f} bytes "
        f"({', '.join(ops)}). A reduce-scatter of each gradient sends {needed:,.0f}."
    )
    grade.reject("all-reduce-for-scatter" if ops == ["all_reduce"] else "unknown", says)

"""Compare every rank's result with the sum in one process, and the bytes and the time with a ring's."""

import random
from typing import Any, NoReturn

import torch
from ranks import ALPHA_S, BETA_S, inputs_of
from torch import Tensor

from frog.learn.grader.grade import Grade
from frog.learn.grader.words import count

Case = dict[str, Any]
TCP_SIZE = 3


def check(grade: Grade) -> None:
    draw = random.Random(grade.seed)
    runs = draw_runs(draw)
    found = grade.call({"runs": runs}, seconds=4.0).values[0]
    pairs = list(zip(runs, found, strict=True))
    for case, seen in pairs:
        check_numbers(grade, case, seen)
    for case, seen in pairs:
        check_lengths(grade, case, seen["lengths"])
    most = 0.0
    for case, seen in pairs:
        most = max(most, check_cost(grade, case, seen))
    if most > 1.1:
        grade.note(f"The busiest rank sent {most:.2f} times as many bytes as in a ring.")
    case = {"size": TCP_SIZE, "seed": grade.seed % 1_000_003, "dtype": "float32", "values": "whole", "numel": 100_003}
    check_tcp(grade, case)
    last = found[-1]
    grade.measured("worlds of 1 to 5, 0 to 5,003 elements", f"{len(runs) - 1} sums, exact")
    grade.measured("sent by a rank of 4, for a buffer of 3,000,000 bytes", f"{max(last['sent']):,}")
    grade.measured("over TCP, 3 processes", f"{case['numel']:,} elements, exact")
    grade.predicted("sent", max(last["sent"]))


def draw_runs(draw: random.Random) -> list[Case]:
    """Draw worlds and lengths: first those that divide, then those that do not, then special ones."""
    runs = [run(draw, size, 4 * size) for size in (4, 5, 3, 2)]
    runs += [run(draw, size, 4 * size + draw.randint(1, size - 1)) for size in (4, 5, 3, 2)]
    runs += [run(draw, 3, draw.randint(4900, 5003), dtype="float64")]
    for size in (4, 3):
        runs += [run(draw, size, numel) for numel in (0, 1, size - 1, size + 1)]
    runs += [run(draw, 1, 7), run(draw, 4, 5), run(draw, 5, 6), run(draw, 5, 12)]
    runs += [run(draw, 4, 11, dtype="int64", values="large"), run(draw, 3, 100, values="random")]
    runs += [run(draw, 5, 5003, values="random"), run(draw, 4, 750_000)]
    return runs


def run(draw: random.Random, size: int, numel: int, dtype: str = "float32", values: str = "whole") -> Case:
    return {"size": size, "numel": numel, "dtype": dtype, "values": values, "seed": draw.randrange(1 << 30)}


def world_of(case: Case) -> str:
    return f"World of {case['size']}, {count(case['numel'], 'element')}"


# ---- the numbers -----------------------------------------------------------------------------------------------------


def check_numbers(grade: Grade, case: Case, seen: Case) -> None:
    says = world_of(case)
    if seen["stuck"]:
        explain_stuck(grade, says, case, seen)
    if seen["error"]:
        explain_error(grade, says, case, seen)
    inputs = inputs_of(case, case["size"])
    expected = torch.stack(inputs).double().sum(0) if case["values"] == "random" else torch.stack(inputs).sum(0)
    for rank, value in enumerate(seen["values"]):
        if case["values"] == "random":
            what = f"{says}: the sum on rank {rank}"
            grade.compare(value, expected.to(value.dtype), what, rtol=1e-4, atol=1e-5)
        elif not torch.equal(value, expected):
            explain(grade, says, case, seen, inputs, expected, rank)
    check_bits(grade, says, seen["values"])


def check_bits(grade: Grade, says: str, values: list[Tensor]) -> None:
    for rank, value in enumerate(values):
        if not torch.equal(value, values[0]):
            num = int((value != values[0]).sum())
            gap = (value - values[0]).abs().max()
            text = f"{says}: {num} of the sums on rank {rank} differ from rank 0's, by up to {gap:.1e}"
            grade.reject("own-order", f"{text}. Both are right up to rounding.")


def explain_stuck(grade: Grade, says: str, case: Case, seen: Case) -> NoReturn:
    waits = "; ".join(f"rank {rank} waits for {what}" for rank, what in seen["waiting"])
    if len(seen["waiting"]) == case["size"] and all(" to receive " in what for _, what in seen["waiting"]):
        grade.reject("sends-first", f"{says}: {waits}. The system's buffers are full.")
    if len(seen["waiting"]) == case["size"] and not seen["messages"]:
        grade.reject("receives-first", f"{says}: {waits}. No rank has sent anything.")
    grade.reject("unknown", f"{says}: {waits}.")


def explain_error(grade: Grade, says: str, case: Case, seen: Case) -> NoReturn:
    size, numel, error = case["size"], case["numel"], seen["error"]
    if "share memory" in error:
        grade.reject("overwrites-what-leaves", f"{says}: exchange raised {error}.")
    pieces = len(torch.arange(max(numel, 1)).chunk(size))
    if error.startswith(("IndexError", "ValueError")) and pieces < size:
        text = f"{says}: a rank raised {error}. torch.chunk of {count(numel, 'element')} into {size} gives "
        text += f"{count(pieces, 'part')}."
        grade.reject("chunk-gives-n-parts", text)
    if size == 1 and "no connection to rank 0" in error:
        grade.reject("one-step-too-many", f"{says}: a rank raised {error}. It is alone and has nothing to exchange.")
    grade.reject("unknown", f"{says}: a rank raised {error}.")


def explain(
    grade: Grade, says: str, case: Case, seen: Case, inputs: list[Tensor], expected: Tensor, rank: int
) -> NoReturn:
    """Reject sums that are not right: find the mistake that gives exactly these numbers on all ranks."""
    size, numel, values = case["size"], case["numel"], seen["values"]
    wrong = int((values[rank] != expected).sum())
    says = f"{says}: {wrong} of the sums on rank {rank} are wrong."
    if all(torch.equal(value, own) for value, own in zip(values, inputs, strict=True)):
        grade.reject("result-dropped", f"{says} No rank's tensor has changed.")
    if all(torch.equal(value, (expected / size).to(value.dtype)) for value in values):
        grade.reject("sum-is-average", f"{says} They are the sums divided by {size}.")
    if size > 2 and seen["contents"] and all(is_own(one, inputs) for one in seen["contents"]):
        text = f"{says} None of the {len(seen['contents'])} messages contains a sum: each has one rank's own numbers."
        grade.reject("replaces-instead-of-adding", text)
    for id, text, changes in WAYS:
        if all(torch.equal(a, b) for a, b in zip(values, simulate(inputs, **changes), strict=True)):
            grade.reject(id, f"{says} {text.format(size=size, less=size - 1, tail=numel % size)}")
    if torch.allclose(values[rank].double(), expected.double(), rtol=1e-5) and not expected.is_floating_point():
        gap, most = int((values[rank] - expected).abs().max()), int(expected.abs().max())
        grade.reject("through-float", f"{says} They are int64, up to {most:,}, and off by up to {gap:,}.")
    grade.reject_different(values[rank], expected, says.rstrip("."))


def is_own(message: Tensor, inputs: list[Tensor]) -> bool:
    """True if a message is a part of one rank's input."""
    length = len(message)
    return any(
        torch.equal(message, own[start : start + length]) for own in inputs for start in range(len(own) - length + 1)
    )


WAYS: list[tuple[str, str, Case]] = [
    ("tail-left-out", "The last {tail} are the rank's own: {size} equal parts leave them over.", {"cut": "equal"}),
    ("adds-in-the-second-lap", "They result if finished sums are added to what is there.", {"adds": True}),
    ("second-lap-starts-anywhere", "They result if the second lap begins with part r on rank r.", {"shift": 0}),
    ("one-lap", "They result after {less} steps, of which each adds: every rank has one complete part.", {"second": 0}),
    ("one-step-short", "They result if the first lap has one step less than {less}.", {"short_first": 1}),
    ("one-step-short", "They result if the second lap has one step less than {less}.", {"short_second": 1}),
    ("turns-the-other-way", "They result if the parts are counted for a ring that turns the other way.", {"way": -1}),
]  # fmt: skip
"""Mistakes in the schedule, what to say about them, and how to simulate them."""


def simulate(
    inputs: list[Tensor],
    *,
    cut: str = "",
    adds: bool = False,
    shift: int = 1,
    second: int | None = None,
    short_first: int = 0,
    short_second: int = 0,
    way: int = 1,
) -> list[Tensor]:
    """Return every rank's result of a ring with one mistake, step by step."""
    size, values = len(inputs), [own.clone() for own in inputs]
    ends = [len(inputs[0]) * index // size for index in range(size + 1)]
    if cut == "equal":
        ends = [len(inputs[0]) // size * index for index in range(size + 1)]

    def part(rank: int, index: int) -> Tensor:
        return values[rank][ends[index % size] : ends[index % size + 1]]

    def step(leaves: int, stays: int, add: bool) -> None:
        leaving = [part(rank, rank + leaves).clone() for rank in range(size)]
        for rank in range(size):
            arrived, space = leaving[(rank - way) % size], part(rank, rank + stays)
            if len(arrived) == len(space):
                space.copy_(space + arrived if add else arrived)

    for number in range(size - 1 - short_first):
        step(-number, -number - 1, True)
    for number in range(size - 1 - short_second if second is None else second):
        step(shift - number, shift - number - 1, adds)
    return values


def check_lengths(grade: Grade, case: Case, lengths: list[int]) -> None:
    """Reject parts of which one is much longer: each step takes as long as its longest message."""
    if len(lengths) == case["size"] and max(lengths) - min(lengths) <= 1:
        return
    size, numel = case["size"], case["numel"]
    says = f"{world_of(case)}: the sums are right, but parts_of returns parts of {lengths} elements."
    if lengths == [numel // size] * (size - 1) + [numel // size + numel % size]:
        grade.reject("rest-in-one-part", f"{says} Their lengths must differ by at most one.")
    grade.reject("unknown", f"{says} Their lengths must differ by at most one, and there must be {size}.")


# ---- bytes and time --------------------------------------------------------------------------------------------------


def check_cost(grade: Grade, case: Case, seen: Case) -> float:
    """Compare the bytes of the busiest rank, and the time, with a ring's; return the ratio of the bytes."""
    size = case["size"]
    if case["numel"] < 5000 or size == 1:
        return 1.0
    num_bytes = case["numel"] * seen["values"][0].element_size()
    ring = 2 * (size - 1) / size * num_bytes
    ring_s = 2 * (size - 1) * (ALPHA_S + num_bytes / size * BETA_S)
    if max(seen["sent"]) >= 2 * ring or seen["time_s"] >= 2 * ring_s:
        explain_cost(grade, case, seen, num_bytes, ring, ring_s)
    return max(seen["sent"]) / ring


def explain_cost(grade: Grade, case: Case, seen: Case, num_bytes: int, ring: float, ring_s: float) -> NoReturn:
    most = max(seen["sent"])
    says = (
        f"{world_of(case)}, {num_bytes:,} bytes: the sums are right. Rank {seen['sent'].index(most)} sent {most:,}; "
        f"in a ring it is {ring:,.0f}. At 1 GB/s and 0.1 ms a message it takes {seen['time_s'] * 1e3:.1f} ms, a ring "
        f"{ring_s * 1e3:.1f} ms."
    )
    ends = [{sender, receiver} for sender, receiver, _ in seen["messages"]]
    center = set.intersection(*ends)
    if center and case["size"] > 2:
        grade.reject("one-rank-adds", f"{says} Rank {min(center)} is an end of each of the {len(ends)} messages.")
    if all(length == case["numel"] for _, _, length in seen["messages"]):
        text = f"{says} Each of the {len(ends)} messages has all {case['numel']:,} elements."
        grade.reject("whole-buffers-travel", text)
    grade.reject("unknown", says)


def check_tcp(grade: Grade, case: Case) -> None:
    world = grade.world(TCP_SIZE, case, work="over_tcp")
    expected = torch.stack(inputs_of(case, TCP_SIZE)).sum(0)
    for rank, value in enumerate(world.values):
        grade.compare(value, expected, f"over TCP, {world_of(case)}: the sum on rank {rank}", rtol=0.0, atol=0.0)

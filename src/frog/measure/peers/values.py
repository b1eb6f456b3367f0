"""Judges the results of a session. A pure function of the observations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from frog.measure.peers.buffers import Array, Unreadable
from frog.measure.peers.calls import Call, error_bound, expected
from frog.measure.peers.findings import Finding
from frog.measure.peers.observed import Observed

_REDUCES = ("all_reduce", "reduce_scatter")
_NARROW = 1e-5
"""Relative error of an integer that was converted to float32."""


def judge_values(seen: Observed) -> Finding | None:
    """Find the first wrong result, and what it looks like instead."""
    return next(_findings(seen), None)


def _findings(seen: Observed) -> Iterator[Finding]:
    for number, call in sorted(enumerate(seen.plan.calls), key=_telling):
        where = f"world {seen.world}, {call}: "
        results: list[Array] = []
        for rank, result in enumerate(seen.results[number]):
            if isinstance(result, Unreadable):
                yield Finding(result.id, f"{where}rank {rank}: {result.observed}.")
                return
            results.append(result)
        for rank, result in enumerate(results):
            if (wrong := _wrong(call, seen.inputs[number], result, rank)) is not None:
                yield Finding(wrong.id, f"{where}rank {rank}: {wrong.observed}")
        if call.operation == "all_reduce" and (wrong := _unequal(results)) is not None:
            yield Finding(wrong.id, where + wrong.observed)
        if ranks := [rank for changed, rank in seen.changed if changed == number]:
            yield Finding("input-changed", f"{where}the input file of rank {ranks[0]} was modified.")


def _telling(numbered: tuple[int, Call]) -> tuple[bool, int]:
    """Sort exact sums of many elements first: they reveal most, while a single element may match by chance."""
    _, call = numbered
    return call.values != "exact", -call.count


def is_right(call: Call, inputs: Sequence[Array], result: Array | Unreadable, rank: int) -> bool:
    """True if the result is complete and correct."""
    return not isinstance(result, Unreadable) and _wrong(call, inputs, result, rank) is None


def _wrong(call: Call, inputs: Sequence[Array], result: Array, rank: int) -> Finding | None:
    """Compare copies and exact sums bit for bit, and other sums within the bound for any order of summation."""
    right = expected(call, inputs, rank)
    if call.operation in _REDUCES and call.values == "random":
        return _outside(call, inputs, result, right, rank)
    wrong = np.flatnonzero(result != right.astype(call.dtype))
    if wrong.size == 0:
        return None
    first = int(wrong[0])
    numbers = f"{wrong.size} of {right.size} elements are wrong; the first is element {first}: " + (
        f"{result[first]}, expected {right.astype(call.dtype)[first]}."
    )
    if call.operation not in _REDUCES:
        return Finding("wrong-copy", numbers)
    return _likeness(call, inputs, result, right, rank, wrong, numbers)


def _outside(call: Call, inputs: Sequence[Array], result: Array, right: Array, rank: int) -> Finding | None:
    away = np.abs(result.astype(np.float64) - right)
    bound = error_bound(call, inputs, rank)
    far = np.flatnonzero(~(away <= bound))
    if far.size == 0:
        return None
    worst = int(far[np.argmax(np.nan_to_num(away[far], nan=np.inf))])
    text = f"{far.size} of {right.size} elements exceed the rounding error of any order of summation; element {worst}: "
    return Finding("outside-bound", f"{text}{result[worst]:.9g}, the exact sum is {right[worst]:.9g}.")


def _likeness(
    call: Call, inputs: Sequence[Array], result: Array, right: Array, rank: int, wrong: Array, numbers: str
) -> Finding:
    """Identify a wrong sum by the expression that it equals."""
    world, remainder = len(inputs), call.count % len(inputs)
    if call.operation == "all_reduce":
        if ranks := _whose_sum(inputs, result):
            return _subset(ranks, rank, world, numbers)
        if right.any() and np.allclose(result * world, right, rtol=1e-6, atol=world):
            return Finding("averaged", f"{numbers} Every element is 1/{world} of the sum.")
        if 0 < remainder < call.count and wrong.min() >= call.count - remainder:
            text = f"{numbers} All but the last {call.count} % {world} = {remainder} are correct."
            return Finding("remainder", text)
    if call.values == "wide" and np.allclose(result.astype(np.float64), right.astype(np.float64), rtol=_NARROW, atol=0):
        return Finding("through-floats", numbers)
    return Finding("wrong-sum", numbers)


def _whose_sum(inputs: Sequence[Array], result: Array) -> tuple[int, ...]:
    """Return the ranks, not all, whose inputs have this sum; empty if there are none."""
    for size in range(1, len(inputs)):
        for ranks in combinations(range(len(inputs)), size):
            if np.array_equal(sum(inputs[rank] for rank in ranks), result):
                return ranks
    return ()


def _subset(ranks: tuple[int, ...], rank: int, world: int, numbers: str) -> Finding:
    if ranks == (rank,):
        return Finding("not-reduced", f"{numbers} The result is this rank's own input.")
    near = {(rank + step) % world for step in (-1, 0, 1)}
    text = f"{numbers} It is the sum of only rank{'s' * (len(ranks) > 1)} {' and '.join(map(str, ranks))}."
    return Finding("neighbours-only" if rank in ranks and set(ranks) <= near else "some-ranks-only", text)


def _unequal(results: Sequence[Array]) -> Finding | None:
    """Check that all ranks have the same bits."""
    for rank, result in enumerate(results[1:], 1):
        if result.tobytes() != results[0].tobytes():
            differ = np.flatnonzero(result.view(np.uint8) != results[0].view(np.uint8)) // result.itemsize
            where, count = int(differ[0]), np.unique(differ).size
            text = f"rank 0 and rank {rank} differ in {count} of {result.size} elements, but each is near the sum; "
            return Finding("ranks-differ", f"{text}element {where}: {results[0][where]:.9g} and {result[where]:.9g}.")
    return None

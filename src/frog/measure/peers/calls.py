"""Collective calls: the input of each rank, and the expected result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from frog.measure.peers.buffers import Array

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
Values = Literal["exact", "random", "wide"]
_MOST_EXACT = 1000


@dataclass(frozen=True)
class Call:
    """One collective call, made by all ranks.

    values: `exact`: small integers, whose sum is the same in any order; `random`: floats of many magnitudes;
    `wide`: integers over their full range, which no float can represent.
    """

    operation: str
    dtype: str
    count: int
    """Number of elements in each rank's input."""
    values: Values = "exact"
    root: int = 0

    def __str__(self) -> str:
        return f"{self.operation} of {self.count} {self.dtype}"

    @property
    def payload_bytes(self) -> int:
        return self.count * np.dtype(self.dtype).itemsize


def make_inputs(call: Call, world: int, rng: np.random.Generator) -> list[Array]:
    """Return each rank's input."""
    return [_draw(call, world, rng) for _ in range(world)]


def _draw(call: Call, world: int, rng: np.random.Generator) -> Array:
    if call.values == "wide":
        most = int(np.iinfo(call.dtype).max) // world
        return rng.integers(-most, most, call.count, dtype=call.dtype)
    if call.values == "random":
        sizes = 10.0 ** rng.uniform(-3, 3, call.count)
        return (rng.standard_normal(call.count) * sizes).astype(call.dtype)
    return rng.integers(-_MOST_EXACT, _MOST_EXACT, call.count, endpoint=True).astype(call.dtype)


def part_of(rank: int, world: int, count: int) -> slice:
    """Return the elements that a rank receives in a reduce-scatter; parts differ by at most one element."""
    return slice(rank * count // world, (rank + 1) * count // world)


def result_count(call: Call, rank: int, world: int) -> int:
    """Return the number of elements of a rank's result."""
    if call.operation == "all_gather":
        return call.count * world
    if call.operation == "reduce_scatter":
        part = part_of(rank, world, call.count)
        return int(part.stop - part.start)
    return call.count


def expected(call: Call, inputs: Sequence[Array], rank: int) -> Array:
    """Return a rank's correct result; sums of floats in float64."""
    if call.operation == "broadcast":
        return inputs[call.root]
    if call.operation == "all_gather":
        return np.concatenate(inputs)
    exact = np.float64 if call.dtype.startswith("float") else call.dtype
    whole: Array = np.stack(inputs).sum(axis=0, dtype=exact)
    return whole[part_of(rank, len(inputs), call.count)] if call.operation == "reduce_scatter" else whole


def error_bound(call: Call, inputs: Sequence[Array], rank: int) -> Array:
    """Return the largest error of a sum of floats, for any order of summation.

    Source:  Higham, Accuracy and Stability of Numerical Algorithms, section 4.2: (n - 1) u sum |x|; here with twice u.
    """
    magnitude = np.sum(np.abs(np.stack(inputs).astype(np.float64)), axis=0)
    bound: Array = (len(inputs) - 1) * float(np.finfo(call.dtype).eps) * magnitude
    return bound[part_of(rank, len(inputs), call.count)] if call.operation == "reduce_scatter" else bound


def result_calls(world: int) -> tuple[Call, ...]:
    """Return all-reduces of awkward sizes and of every dtype."""
    counts = sorted({0, 1, world - 1, world, world + 1, 1000 * world + 1})
    return (
        *(Call("all_reduce", "float32", count) for count in counts),
        Call("all_reduce", "float32", 1 << 18),
        Call("all_reduce", "float32", 10_007, "random"),
        Call("all_reduce", "float64", 1_003, "random"),
        Call("all_reduce", "int32", 1_001, "wide"),
        Call("all_reduce", "int64", 1_001, "wide"),
    )


def operation_calls(operation: str, world: int) -> tuple[Call, ...]:
    """Return the same calls for another operation; the root of a broadcast varies."""
    last = world - 1 if operation == "broadcast" else 0
    return (
        *(Call(operation, "float32", count) for count in (0, 1, world + 1)),
        Call(operation, "float32", 10_007, root=last),
        Call(operation, "float32", 1_003, "random", root=last),
        Call(operation, "int64", 1_001, "wide"),
    )

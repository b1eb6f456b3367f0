"""Reductions of two buffers: combine first and second, element by element, into the first.

numpy has no bfloat16: such a buffer is viewed as `BFLOAT16`, converted to float32 for the computation, and rounded to
nearest, ties to even. float16 is also converted to float32. Integers wrap around, as they do in torch.

Assumes: buffers are contiguous and one-dimensional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Buffer = NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", np.uint16)])
OPERATIONS: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_HALVES = (BFLOAT16, np.dtype(np.float16))
_BLOCK = 1 << 16
"""Number of elements converted to float32 at a time: they fit in the cache."""

Combine = Callable[[Buffer, Buffer, Buffer], None]
"""(a, b, out): combine a and b into out; out may be a or b."""


class Reduction:
    """An operation on buffers of one type, over a given number of ranks.

    Raises:  ValueError for an operation that this type does not support.
    """

    def __init__(self, op: str, dtype: np.dtype[Any], num_ranks: int) -> None:
        if op not in OPERATIONS:
            raise ValueError(f"unknown reduction {op}; use one of {', '.join(OPERATIONS)}")
        if op == "avg" and dtype.kind in "biu":
            raise ValueError(f"avg of {dtype}: the mean of integers may not be an integer; use sum")
        if op in ("band", "bor", "bxor") and dtype.kind not in "biu":
            raise ValueError(f"{op} of {name_of(dtype)}: bitwise operations need integers or bool")
        self._op, self._num_ranks = op, num_ranks
        function = OPERATIONS[op]
        self.combine: Combine = (
            (lambda a, b, out: _in_float32(function, a, b, out))
            if dtype in _HALVES
            else (lambda a, b, out: function(a, b, out=out))
        )

    def total(self, terms: Sequence[Buffer], out: Buffer, room: Buffer | None = None) -> None:
        """Reduce all terms in order into `out`, and finish. `room` holds partial sums if `out` is one of the terms."""
        between = out if room is None else room
        so_far = terms[0]
        for term in terms[1:-1]:
            self.combine(so_far, term, between)
            so_far = between
        self.combine(so_far, terms[-1], out)
        self.finish(out)

    def finish(self, x: Buffer) -> None:
        """Complete the reduction once `x` combines all ranks' values: for an average, divide the sum."""
        if self._op != "avg":
            return
        if x.dtype not in _HALVES:
            np.divide(x, self._num_ranks, out=x)
            return
        for begin in range(0, len(x), _BLOCK):
            block = x[begin : begin + _BLOCK]
            _narrow(_widen(block) / np.float32(self._num_ranks), block)


def name_of(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype; numpy has none for bfloat16."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def _in_float32(function: Any, a: Buffer, b: Buffer, out: Buffer) -> None:
    for begin in range(0, len(a), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        wide = _widen(a[part])
        function(wide, _widen(b[part]), out=wide)
        _narrow(wide, out[part])


def _widen(x: Buffer) -> NDArray[np.float32]:
    if x.dtype != BFLOAT16:
        return x.astype(np.float32)
    return (x["bfloat16"].astype(np.uint32) << 16).view(np.float32)


def _narrow(wide: NDArray[np.float32], out: Buffer) -> None:
    if out.dtype != BFLOAT16:
        with np.errstate(over="ignore"):
            out[:] = wide
        return
    bits = wide.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    out["bfloat16"] = np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded)

"""What a reduction does with two buffers: into the first goes first and second, element by element.

numpy has no bfloat16: such a buffer is viewed as `BFLOAT16`, computed with in float32 and rounded to the nearest,
ties to even. float16 is computed with in float32 as well. Integers wrap around, as they do in torch.

Assumes: buffers are contiguous and of one dimension.
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
"""Elements that are widened at a time: they stay in the cache."""

Combine = Callable[[Buffer, Buffer, Buffer], None]
"""(a, b, out): out becomes a and b; out may be a or b."""


class Reduction:
    """An operation on buffers of one type, over so many ranks.

    Raises:  ValueError for an operation that this type has not.
    """

    def __init__(self, op: str, dtype: np.dtype[Any], num_ranks: int) -> None:
        if op not in OPERATIONS:
            raise ValueError(f"no reduction is called {op}; there are {', '.join(OPERATIONS)}")
        if op == "avg" and dtype.kind in "biu":
            raise ValueError(f"avg of {dtype}: the mean of whole numbers need not be one; take sum")
        if op in ("band", "bor", "bxor") and dtype.kind not in "biu":
            raise ValueError(f"{op} of {name_of(dtype)}: bits are combined of whole numbers and bool only")
        self._op, self._num_ranks = op, num_ranks
        function = OPERATIONS[op]
        self.combine: Combine = (
            (lambda a, b, out: _in_float32(function, a, b, out))
            if dtype in _HALVES
            else (lambda a, b, out: function(a, b, out=out))
        )

    def total(self, terms: Sequence[Buffer], out: Buffer, room: Buffer | None = None) -> None:
        """`out` = all terms, in their order, finished. `room` is for sums in between if `out` is one of the terms."""
        between = out if room is None else room
        so_far = terms[0]
        for term in terms[1:-1]:
            self.combine(so_far, term, between)
            so_far = between
        self.combine(so_far, terms[-1], out)
        self.finish(out)

    def finish(self, x: Buffer) -> None:
        """What is left to do when all ranks' values are in `x`: an average is a sum until then."""
        if self._op != "avg":
            return
        if x.dtype not in _HALVES:
            np.divide(x, self._num_ranks, out=x)
            return
        for begin in range(0, len(x), _BLOCK):
            block = x[begin : begin + _BLOCK]
            _narrow(_widen(block) / np.float32(self._num_ranks), block)


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of a type of numbers; numpy has none for bfloat16."""
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

"""Records the collectives that the file of a strategy of one's own calls in torch.distributed, like Frog's own."""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from frog.train.comm import Axis
from frog.train.comm.axis import Note

_CALLS = {
    "all_reduce": ("all_reduce", 0),
    "all_gather": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "all_to_all": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 1),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
}
"""torch's functions: the operation's name, and the argument whose bytes are reported, as in `frog.train.comm.axis`."""


class RecordedWork:
    """torch's handle of an asynchronous collective, which records when `wait` returns."""

    def __init__(self, work: Any, note: Note, wait_ns: int) -> None:
        self._work, self._note, self._wait_ns = work, note, wait_ns
        self._is_done = False

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        start_ns = time.monotonic_ns()
        result = self._work.wait(*args, **kwargs)
        if not self._is_done:
            self._is_done, end_ns = True, time.monotonic_ns()
            self._note.done(end_ns, self._wait_ns + end_ns - start_ns)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


@contextmanager
def recorded(path: Path, axis: Axis) -> Iterator[None]:
    """Record the collectives that the file calls inside this block; those of other callers stay as they are."""
    own = {name: function for name in _CALLS if (function := getattr(dist, name, None)) is not None}
    file = str(path.absolute())
    for name, function in own.items() if axis.size > 1 else ():
        setattr(dist, name, _recorded(function, *_CALLS[name], file, axis))
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(dist, name, function)


def _recorded(function: Callable[..., Any], op: str, place: int, file: str, axis: Axis) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_code.co_filename != file:
            return function(*args, **kwargs)
        given = list(signature.bind(*args, **kwargs).arguments.values())
        start_ns = time.monotonic_ns()
        note = axis.record(op, axis.name, _num_bytes(given[place]))
        work = function(*args, **kwargs)
        end_ns = time.monotonic_ns()
        if work is not None:
            return RecordedWork(work, note, end_ns - start_ns)
        note.done(end_ns, end_ns - start_ns)
        return None

    return call


def _num_bytes(payload: Tensor | Sequence[Tensor]) -> int:
    if isinstance(payload, Tensor):
        return payload.nbytes
    return sum(tensor.nbytes for tensor in payload) if isinstance(payload, list | tuple) else 0

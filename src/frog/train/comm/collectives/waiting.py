"""Waiting until a number in shared memory rises.

A rank first polls for about as long as an answer in transit takes; then it yields the processor; then it sleeps, until
the rank that raises the number sees the sleeper and wakes it. The two can just miss each other when a rank has only
now announced that it sleeps: so the first nap ends after half a millisecond, and later ones are long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence

from frog.core.runs.observer import OBSERVERS
from frog.train.comm.collectives.errors import CollectiveError, TimedOut

_LOOKS = 60
_YIELDS = 40
_FIRST_NAP_S = 0.0005
_CHECK_S = 0.02
"""How often a waiting rank checks that its peers still exist: the length of all naps after the first."""
_ASLEEP = 7
"""Index of the number in a rank's line that tells whether it sleeps."""
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Waiter:
    """The counters of all ranks; this rank writes one of them."""

    def __init__(
        self, memory: mmap.mmap, line_bytes: int, rank: int, size: int, timeout_s: float, look: Callable[[int], None]
    ) -> None:
        """look: called regularly with the awaited rank; raises CollectiveError if waiting for it is pointless."""
        self._numbers = memoryview(memory).cast("B").cast("Q")
        self._line = line_bytes // 8
        self._own = rank * self._line
        self._others = tuple(other for other in range(size) if other != rank)
        self._timeout_s, self._look = timeout_s, look
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._libc = ctypes.CDLL(None)

    def say(self, counter: int, value: int) -> None:
        """Publish this rank's progress."""
        for observer in OBSERVERS:
            observer.counter_rises(counter, value)
        numbers = self._numbers
        numbers[self._own + counter] = value
        for other in self._others:
            if numbers[other * self._line + _ASLEEP]:
                self._futex(self._own + counter, _WAKE, 1 << 30)

    def seen(self, rank: int, counter: int) -> int:
        """Return a rank's progress."""
        return int(self._numbers[rank * self._line + counter])

    def until(self, counter: int, value: int, ranks: Sequence[int] | None = None) -> None:
        """Wait until these ranks (default: all others) reach `value`. Raises TimedOut, or the error of `look`."""
        numbers, line = self._numbers, self._line
        for rank in self._others if ranks is None else ranks:
            place = rank * line + counter
            if numbers[place] < value:
                self._wait(place, value, rank)

    def _wait(self, place: int, value: int, rank: int) -> None:
        numbers = self._numbers
        for _ in range(_LOOKS):
            if numbers[place] >= value:
                return
        for _ in range(_YIELDS):
            os.sched_yield()
            if numbers[place] >= value:
                return
        numbers[self._own + _ASLEEP] = 1
        try:
            self._sleep(place, value, rank)
        finally:
            numbers[self._own + _ASLEEP] = 0

    def _sleep(self, place: int, value: int, rank: int) -> None:
        numbers, nap_s = self._numbers, _FIRST_NAP_S
        began_s = checked_s = time.monotonic()
        while (seen := numbers[place]) < value:
            self._futex(place, _WAIT, seen & 0xFFFFFFFF, nap_s)
            nap_s, now_s = _CHECK_S, time.monotonic()
            if now_s - checked_s > _CHECK_S:
                checked_s = now_s
                self._check(place, value, rank)
                if now_s - began_s > self._timeout_s:
                    raise TimedOut(now_s - began_s, [rank])

    def _check(self, place: int, value: int, rank: int) -> None:
        """Raise the error of `look`, unless the awaited value arrived meanwhile."""
        try:
            self._look(rank)
        except CollectiveError:
            if self._numbers[place] < value:
                raise

    def _futex(self, place: int, operation: int, value: int, nap_s: float = 0.0) -> None:
        if _FUTEX is None:
            if operation == _WAIT:
                time.sleep(_FIRST_NAP_S / 5)
            return
        self._libc.syscall(
            _FUTEX, ctypes.c_void_p(self._address + 8 * place), operation, ctypes.c_uint32(value),
            ctypes.byref(_Time(0, int(nap_s * 1e9))) if nap_s else None, None, 0,
        )  # fmt: skip

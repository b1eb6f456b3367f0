"""Waiting for a number in shared memory to rise.

First by looking again, as long as an answer takes that is under way; then by giving the processor to others; then
asleep, until whoever raises the number sees that somebody sleeps and wakes him. Both can just miss each other when the
sleeper has only now said that he sleeps: so the first nap ends after half a millisecond, and later ones are long.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence

from frog.comm.collectives.errors import CollectiveError, TimedOut
from frog.runs.observer import OBSERVERS

_LOOKS = 60
_YIELDS = 40
_FIRST_NAP_S = 0.0005
_CHECK_S = 0.02
"""How often a rank that waits looks whether its peers are still there: so long are the naps after the first."""
_ASLEEP = 7
"""The number in a rank's line that says whether it sleeps."""
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class Waiter:
    """The counters of all ranks, of which one is written here."""

    def __init__(
        self, memory: mmap.mmap, line_bytes: int, rank: int, size: int, timeout_s: float, look: Callable[[int], None]
    ) -> None:
        """look: called now and then with the rank that is waited for; raises CollectiveError if that is in vain."""
        self._numbers = memoryview(memory).cast("B").cast("Q")
        self._line = line_bytes // 8
        self._own = rank * self._line
        self._others = tuple(other for other in range(size) if other != rank)
        self._timeout_s, self._look = timeout_s, look
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._libc = ctypes.CDLL(None)

    def say(self, counter: int, value: int) -> None:
        """This rank has come so far."""
        for observer in OBSERVERS:
            observer.counter_rises(counter, value)
        numbers = self._numbers
        numbers[self._own + counter] = value
        for other in self._others:
            if numbers[other * self._line + _ASLEEP]:
                self._futex(self._own + counter, _WAKE, 1 << 30)

    def seen(self, rank: int, counter: int) -> int:
        """How far a rank has come."""
        return int(self._numbers[rank * self._line + counter])

    def until(self, counter: int, value: int, ranks: Sequence[int] | None = None) -> None:
        """Return when these ranks (all others) have come so far. Raises TimedOut, or what `look` raises."""
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
        """Raise what `look` raises, unless what is waited for has come while it looked."""
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

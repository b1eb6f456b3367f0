"""Run ranks as threads that take turns, in a seeded order, with a simulated store and clock.

A rank that waits for a key gets no turn until the key exists; one that repeats a read gets none until something was
written. When no rank can run, the clock advances to the next moment at which a rank wakes up, reads again or reaches a
deadline. Without such a moment the ranks would wait forever, which is detected at once. No verdict depends on the
machine's speed.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OPERATIONS = 20_000
"""Limit on store operations, far above any legitimate need."""
WAITS, ASKS, TOO_MUCH = "waits forever", "polls forever", "exceeds the limit of operations"
"""Reasons for stopping a world."""
_LEAST_S, _COARSER = 0.001, 0.02
"""Minimum time of a sleep or a repeated read, absolute and relative to the time since the last write."""
_of_thread = threading.local()
_monotonic = time.monotonic


class Stopped(BaseException):
    """Ends a rank's thread when the world is stopped."""


@dataclass(frozen=True)
class _Request:
    """A rank's wait: for a condition, or for a moment of the clock."""

    is_ready: Callable[[], bool]
    until_s: float | None


class Turns:
    """The scheduler. Rank `quick` runs whenever it can, rank `slow` only when no other can; both may be None."""

    def __init__(
        self, seed: int, size: int, patience_s: float, quick: int | None = None, slow: int | None = None
    ) -> None:
        self.stopped: str | None = None
        self.now_s = _monotonic()
        self.version = 0
        """Number of writes."""
        self.counts: Counter[str] = Counter()
        self.made: dict[str, int] = {}
        """The version at the first write of each key."""
        self.lost: set[str] = set()
        """Counters with a lost update: a rank wrote its value plus one although another rank had written in between."""
        self.does: dict[int, str] = {}
        """Each rank's current or last operation."""
        self.waiting: set[int] = set()
        """The ranks that had not finished when the world was stopped."""
        self._draw, self._size, self._patience_s, self._quick, self._slow = (
            random.Random(seed),
            size,
            patience_s,
            quick,
            slow,
        )
        self._changed = threading.Condition()
        self._requests: dict[int, _Request] = {}
        self._ended: set[int] = set()
        self._turn: int | None = None
        self._written_s = self.now_s

    def run(self, ranks: Sequence[Callable[[], None]]) -> list[BaseException]:
        """Run all ranks until they finish or the world is stopped. Return the exceptions that they raised."""
        errors: list[BaseException] = []
        threads = [threading.Thread(target=self._be, args=(*each, errors), daemon=True) for each in enumerate(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return errors

    def do(
        self,
        rank: int,
        does: str,
        operation: Callable[[], Any] = lambda: None,
        *,
        is_ready: Callable[[], bool] = lambda: True,
        asks_again: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Run the operation when the rank has its turn, while no other rank runs, and return its result.

        Raises:  TimeoutError if the clock reaches timeout_s first.
        """
        with self._changed:
            self.counts[does.split("(")[0]] += 1
            until_s = None if timeout_s is None else self.now_s + timeout_s
            if asks_again:
                until_s = self._after(0.0)
            if not self._take(rank, does, _Request(is_ready, until_s)) and not asks_again:
                raise TimeoutError(f"{does}: {timeout_s:.3f} s have passed")
            return operation()

    def sleep(self, rank: int, seconds: float) -> None:
        """Let the other ranks run, and then let the clock advance."""
        with self._changed:
            self._take(rank, self.does.get(rank, ""), _Request(lambda: False, self._after(seconds)))

    def write(self) -> None:
        """Record a write: ranks that repeated a read may read again."""
        self.version += 1
        self._written_s = self.now_s

    def _be(self, rank: int, does: Callable[[], None], errors: list[BaseException]) -> None:
        _of_thread.place = (self, rank)
        try:
            does()
        except Stopped:
            self.waiting.add(rank)
        except BaseException as error:
            errors.append(error)
            with self._changed:
                self._stop("raised")
        finally:
            with self._changed:
                self._ended.add(rank)
                self._pass_on()

    def _after(self, seconds: float) -> float:
        return self.now_s + max(seconds, _LEAST_S, _COARSER * (self.now_s - self._written_s))

    def _take(self, rank: int, does: str, request: _Request) -> bool:
        """Wait for a turn. Return True if the rank was ready. No other rank runs until this one yields."""
        self._requests[rank], self.does[rank] = request, does
        self._pass_on()
        while self._turn != rank:
            if self.stopped is not None:
                raise Stopped
            self._changed.wait()
        self._turn = None
        del self._requests[rank]
        if self.counts.total() > OPERATIONS:
            self._stop(TOO_MUCH)
        return request.is_ready()

    def _pass_on(self) -> None:
        """Once every rank has reached an operation or finished, choose the next one to run."""
        if self._turn is not None or len(self._requests) + len(self._ended) < self._size or not self._requests:
            return
        ready = sorted(rank for rank, request in self._requests.items() if request.is_ready())
        moments = [(request.until_s, rank) for rank, request in self._requests.items() if request.until_s is not None]
        if ready:
            self._turn = self._choose(ready)
        elif not moments or self.now_s - self._written_s > self._patience_s:
            self._stop(ASKS if moments else WAITS)
        else:
            moment, self._turn = min(moments)
            self.now_s = max(self.now_s, moment)
        self._changed.notify_all()

    def _choose(self, ready: Sequence[int]) -> int:
        if self._quick in ready:
            return ready[ready.index(self._quick)]
        return self._draw.choice([rank for rank in ready if rank != self._slow] or ready)

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self._changed.notify_all()


class TurnStore:
    """A rank's view of a store; all ranks share `values` and `cleared`, the set of deleted keys."""

    def __init__(self, turns: Turns, rank: int, values: dict[str, bytes], cleared: set[str]) -> None:
        self._turns, self._rank, self._values, self._cleared = turns, rank, values, cleared
        self._seen: dict[str, int] = {}
        self._read: dict[str, bytes] = {}
        self.looked: set[str] = set()
        """The keys that this rank read or waited for last."""

    def set(self, key: str, value: str | bytes) -> None:
        self._do("set", [key], lambda: self._set(key, value if isinstance(value, bytes) else str(value).encode()))

    def get(self, key: str) -> bytes:
        return bytes(self._do("get", [key], lambda: self._look(key), waits=True, reads=True))

    def add(self, key: str, amount: int) -> int:
        return int(self._do("add", [key], lambda: self._count(key, amount), reads=amount == 0))

    def wait(self, keys: Sequence[str], timeout_s: float | None = None) -> None:
        self._do("wait", list(keys), lambda: None, waits=True, timeout_s=timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._do("check", list(keys), lambda: all(key in self._values for key in keys), reads=True))

    def delete_key(self, key: str) -> bool:
        return bool(self._do("delete_key", [key], lambda: self._delete(key)))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return bytes(self._do("compare_set", [key], lambda: self._compare(key, expected.encode(), desired.encode())))

    def num_keys(self) -> int:
        return int(self._do("num_keys", [], lambda: len(self._values), reads=True))

    def _do(
        self,
        name: str,
        keys: list[str],
        operation: Callable[[], Any],
        waits: bool = False,
        reads: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Run an operation in turn. `waits`: wait until the keys exist. `reads`: repeating it counts as polling."""
        does = f"{name}({', '.join(keys)})"
        if waits or reads:
            self.looked = set(keys)

        def is_there() -> bool:
            return not waits or all(key in self._values for key in keys)

        again = reads and is_there() and self._seen.get(does) == self._turns.version

        def is_ready() -> bool:
            return is_there() and not (again and self._seen.get(does) == self._turns.version)

        def take() -> tuple[bool, Any]:
            return (True, operation()) if is_there() else (False, None)  # deleted while the rank waited to read again

        done = False
        while not done:
            done, value = self._turns.do(
                self._rank, does, take, is_ready=is_ready, asks_again=again, timeout_s=timeout_s
            )
            again = False
        self._seen[does] = self._turns.version
        return value

    def _look(self, key: str) -> bytes:
        self._read[key] = self._values[key]
        return self._values[key]

    def _set(self, key: str, value: bytes) -> None:
        read = self._read.get(key, b"")
        if read.isdigit() and value == str(int(read) + 1).encode() and read != self._values.get(key):
            self._turns.lost.add(key)
        self._write(key, value)

    def _write(self, key: str, value: bytes) -> None:
        before = self._values.get(key, b"")
        if before.isdigit() and value.isdigit() and int(value) < int(before):
            self._cleared.add(key)
        self._values[key] = value
        self._turns.write()
        self._turns.made.setdefault(key, self._turns.version)

    def _count(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        if amount or key not in self._values:
            self._write(key, str(total).encode())
        self._read[key] = self._values[key]
        return total

    def _delete(self, key: str) -> bool:
        if key in self._values:
            self._cleared.add(key)
        self._turns.write()
        return self._values.pop(key, None) is not None

    def _compare(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self._values.get(key, b"") == expected:
            self._write(key, desired)
        return self._values.get(key, expected)


def pretend_clock() -> None:
    """Replace the functions of `time` with the simulated clock, only for the ranks of a `Turns`."""
    real_sleep = time.sleep

    def sleep(seconds: float, /) -> None:
        place = getattr(_of_thread, "place", None)
        real_sleep(seconds) if place is None else place[0].sleep(place[1], seconds)

    setattr(time, "sleep", sleep)  # noqa: B010
    for name in ("monotonic", "perf_counter", "time"):
        ahead_s = getattr(time, name)() - _monotonic()
        for unit, per_s in (("", 1.0), ("_ns", 1_000_000_000)):
            setattr(time, name + unit, _reading(getattr(time, name + unit), ahead_s, per_s))


def _reading(real: Callable[[], float], ahead_s: float, per_s: float) -> Callable[[], float]:
    def read() -> float:
        place = getattr(_of_thread, "place", None)
        return real() if place is None else type(per_s)((place[0].now_s + ahead_s) * per_s)

    return read

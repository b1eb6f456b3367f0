"""Run the learner's barrier on a store whose users take turns, in an order that a seed decides; then on a real one.

The ranks are threads. A rank that waits for a key has no turn until the key is there; one that reads the same again and
again has none until something was written. If nobody can have a turn, they wait for ever, which is known at once.
"""

import random
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

OPERATIONS = 4000
"""More than any barrier needs."""


class Stopped(BaseException):
    """Ends a rank's thread: the world is over."""


class Turns:
    """Who may go on."""

    def __init__(self, seed: int, size: int, quick: int | None, slow: int | None) -> None:
        self.draw, self.size, self.quick, self.slow = random.Random(seed), size, quick, slow
        self.values: dict[str, bytes] = {}
        self.version = 0
        self.asking: dict[int, Callable[[], bool]] = {}
        self.ended: set[int] = set()
        self.turn: int | None = None
        self.stopped: str | None = None
        self.operations = 0
        self.changed = threading.Condition()
        self.does: dict[int, str] = {}
        self.counts: dict[str, int] = {}
        self.looks: dict[int, set[str]] = {}
        self.cleared: set[str] = set()

    def take(self, rank: int, does: str, ready: Callable[[], bool]) -> None:
        """Wait for a turn. Called with `changed` held; afterwards nobody else goes on until the next call."""
        self.asking[rank], self.does[rank] = ready, does
        self.counts[does.split("(")[0]] = self.counts.get(does.split("(")[0], 0) + 1
        self._pass_on()
        while self.turn != rank:
            if self.stopped is not None:
                raise Stopped
            self.changed.wait()
        self.turn = None
        del self.asking[rank]
        self.operations += 1
        if self.operations > OPERATIONS:
            self._stop("spins")

    def end(self, rank: int) -> None:
        with self.changed:
            self.ended.add(rank)
            self._pass_on()

    def _pass_on(self) -> None:
        """When all ranks have come to an operation, or are through, choose one of those that can go on."""
        if self.turn is not None or len(self.asking) + len(self.ended) < self.size:
            return
        ready = sorted(rank for rank, is_ready in self.asking.items() if is_ready())
        if not ready:
            if self.asking:
                self._stop("waits")
            return
        others = [rank for rank in ready if rank != self.slow]
        self.turn = self.quick if self.quick in ready else self.draw.choice(others or ready)
        self.changed.notify_all()

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self.changed.notify_all()


class TurnStore:
    """A rank's view of the store."""

    def __init__(self, turns: Turns, rank: int) -> None:
        self._turns, self._rank = turns, rank
        self._seen: dict[str, int] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._do(f"set({key})", lambda: self._write(key, value if isinstance(value, bytes) else str(value).encode()))

    def get(self, key: str) -> bytes:
        return self._do(f"get({key})", lambda: self._turns.values[key], keys=[key], reads=True)

    def add(self, key: str, amount: int) -> int:
        return self._do(f"add({key})", lambda: self._count(key, amount), reads=amount == 0)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        self._do(f"wait({', '.join(keys)})", lambda: None, keys=list(keys))

    def check(self, keys: list[str]) -> bool:
        return self._do(f"check({', '.join(keys)})", lambda: all(k in self._turns.values for k in keys), reads=True)

    def delete_key(self, key: str) -> bool:
        return self._do(f"delete_key({key})", lambda: self._delete(key))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._do(f"compare_set({key})", lambda: self._compare(key, expected.encode(), desired.encode()))

    def num_keys(self) -> int:
        return self._do("num_keys()", lambda: len(self._turns.values), reads=True)

    def _do(self, does: str, operation: Callable[[], Any], keys: list[str] | None = None, reads: bool = False) -> Any:
        """Who reads the same again has no turn before something was written."""
        turns, seen = self._turns, self._seen
        if keys or reads:
            turns.looks[self._rank] = set(does.partition("(")[2].removesuffix(")").split(", "))

        def ready() -> bool:
            again = reads and seen.get(does) == turns.version
            return not again and all(key in turns.values for key in keys or [])

        with turns.changed:
            turns.take(self._rank, does, ready)
            found = operation()
            seen[does] = turns.version
            return found

    def _write(self, key: str, value: bytes) -> None:
        before = self._turns.values.get(key, b"")
        if before.isdigit() and value.isdigit() and int(value) < int(before):
            self._turns.cleared.add(key)
        self._turns.values[key] = value
        self._turns.version += 1

    def _count(self, key: str, amount: int) -> int:
        total = int(self._turns.values.get(key, b"0")) + amount
        if amount or key not in self._turns.values:
            self._write(key, str(total).encode())
        return total

    def _delete(self, key: str) -> bool:
        self._turns.version += 1
        if key in self._turns.values:
            self._turns.cleared.add(key)
        return self._turns.values.pop(key, None) is not None

    def _compare(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self._turns.values.get(key, b"") == expected:
            self._write(key, desired)
        return self._turns.values.get(key, expected)


def run(
    seed: int, size: int, quick: int | None, slow: int | None, rank_does: Callable[[int, TurnStore, Turns], None]
) -> Turns:
    """Run a function as each rank, in an order from the seed; `quick` goes on when it can, `slow` when no other can.

    Raises:  the first error of a rank.
    """
    turns = Turns(seed, size, quick, slow)
    errors: list[BaseException] = []

    def be(rank: int) -> None:
        try:
            rank_does(rank, TurnStore(turns, rank), turns)
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            with turns.changed:
                turns._stop("raised")
        finally:
            turns.end(rank)

    threads = [threading.Thread(target=be, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return turns


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Each run of the case: who left a barrier before all had come, and who waits for ever."""
    return [take_turns(learner, **each) for each in case["runs"]]


def take_turns(
    learner: ModuleType,
    seed: int,
    size: int,
    quick: int | None,
    slow: int | None,
    names: list[str],
    rounds: int,
) -> dict[str, Any]:
    """All ranks meet at each of the named barriers in turn, `rounds` times.

    `cleared`: keys that let a rank through too early, or for which one waits for ever, and that somebody had cleared.
    """
    came: dict[str, int] = dict.fromkeys(names, 0)
    at: dict[int, list[Any]] = {}
    early: list[list[Any]] = []
    doors: set[str] = set()

    def be(rank: int, store: TurnStore, turns: Turns) -> None:
        barriers = {name: learner.Barrier(store, name, rank, size) for name in names}
        for number in range(1, rounds + 1):
            for name in names:
                with turns.changed:
                    turns.take(rank, "come()", lambda: True)
                    came[name] += 1
                    at[rank] = [name, number]
                barriers[name].wait()
                with turns.changed:
                    at.pop(rank)
                    if came[name] < size * number:
                        early.append([rank, name, number, came[name] - size * (number - 1)])
                        doors.update(turns.looks.get(rank, ()))

    turns = run(seed, size, quick, slow, be)
    waits = {str(rank): [*at[rank], turns.does.get(rank, "")] for rank in sorted(at)}
    doors.update(*(turns.looks.get(rank, ()) for rank in at))
    seen = {"counts": turns.counts, "cleared": sorted(doors & turns.cleared), "writes": turns.version}
    return {"early": early, "stuck": turns.stopped, "waits": waits, **seen}


def meet(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Meet at barriers of a real TCPStore; when this rank came to each and left it, in nanoseconds of one clock.

    Then count twice to the same key, as for the prediction.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    port = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        serving = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port[0] = serving.port
    dist.broadcast(port, 0)
    store = serving if rank == 0 else dist.TCPStore("127.0.0.1", int(port[0]), is_master=False)
    barrier = learner.Barrier(store, "checkpoint", rank, size)
    moments = []
    for number in range(case["rounds"]):
        if rank == number % size:
            time.sleep(0.01)
        came = time.monotonic_ns()
        barrier.wait()
        moments.append([came, time.monotonic_ns()])
    counts = [store.add("predicted", 1) for _ in range(2)]
    dist.all_reduce(port)
    return {"moments": moments, "count": max(counts)}

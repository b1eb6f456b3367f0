"""Run the learner's join on pretended hosts whose processes take turns, in an order from a seed; then by a real store.

The processes are threads. Who waits for a key, or for somebody who listens, has no turn until it is there. If nobody
can have a turn, the next deadline passes; if there is none, they wait for ever, which is known at once.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

POLLS_S = 0.6
"""How long a run goes on in which nobody does anything but ask again."""
OPERATIONS = 5000
"""More than any rendezvous needs."""


class Stopped(BaseException):
    """Ends a process's thread: the run is over."""


class Turns:
    """Who may go on, on which hosts somebody listens, and what each did."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.draw, self.size = random.Random(case["seed"]), len(case["tasks"])
        self.timeout_s = case["timeout_s"]
        self.all_come = not case["absent"]
        self.stores: dict[tuple[str, int], dict[str, bytes]] = {}
        self.opened: list[list[Any]] = []
        self.waits: dict[int, tuple[str, Callable[[], bool], float | None]] = {}
        self.does: dict[int, str] = {}
        self.ended: set[int] = set()
        self.expired: dict[int, float] = {}
        self.turn: int | None = None
        self.late = False
        self.stopped: str | None = None
        self.version = self.operations = 0
        self.idle_since: float | None = None
        self.changed = threading.Condition()

    def take(self, who: int, does: str, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait for a turn, with `changed` held. Raises TimeoutError when no other could go on any more."""
        patient = timeout_s is None or timeout_s > 1.5 * self.timeout_s
        ends = None if patient else time.monotonic() + timeout_s
        self.waits[who], self.does[who] = (does, ready, ends), does
        self.pass_on()
        while self.turn != who:
            if self.stopped is not None:
                raise Stopped
            self.changed.wait()
        self.turn, late = None, self.late
        self.operations += 1
        if self.operations > OPERATIONS:
            self.stop("asks again and again")
        del self.waits[who]
        if late:
            time.sleep(max(0.0, ends - time.monotonic()))
            self.expired[who] = self.expired.get(who, 0.0) + timeout_s
            raise TimeoutError(f"{does}: {timeout_s:.3f} s have passed")

    def end(self, who: int) -> None:
        with self.changed:
            self.ended.add(who)
            self.pass_on()

    def pass_on(self) -> None:
        """When all have come to an operation, or are through, choose one of those that can go on."""
        if self.turn is not None or len(self.waits) + len(self.ended) < self.size or not self.waits:
            return
        ready = sorted(who for who, (_, is_ready, _) in self.waits.items() if is_ready())
        self.late = False
        if ready:
            self.turn, self.idle_since = self.draw.choice(ready), None
        elif asking := [who for who, (does, _, _) in self.waits.items() if does.startswith(("check", "add"))]:
            self.idle_since = self.idle_since or time.monotonic()
            if self.all_come or time.monotonic() - self.idle_since > POLLS_S:
                self.stop("asks again and again")
            self.turn = asking[0] if self.stopped is None else None
        elif (ends := [(at, who) for who, (_, _, at) in self.waits.items() if at is not None]) and not self.all_come:
            self.turn, self.late = min(ends)[1], True
        else:
            self.stop("waits for ever")
        self.changed.notify_all()

    def stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self.changed.notify_all()


class TurnStore:
    """One process's view of a store."""

    def __init__(self, turns: Turns, who: int, values: dict[str, bytes]) -> None:
        self._turns, self._who, self._values = turns, who, values
        self._seen: tuple[str, int] | None = None

    def set(self, key: str, value: str | bytes) -> None:
        self._do(f"set({key})", lambda: self._write(key, value if isinstance(value, bytes) else str(value).encode()))

    def get(self, key: str) -> bytes:
        return self._do(f"get({key})", lambda: self._values[key], keys=[key])

    def add(self, key: str, amount: int) -> int:
        return self._do(f"add({key})", lambda: self._count(key, amount), again=amount == 0)

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        self._do(f"wait({', '.join(keys)})", lambda: None, keys=list(keys), timeout_s=timeout_s)

    def check(self, keys: list[str]) -> bool:
        return self._do(f"check({', '.join(keys)})", lambda: all(key in self._values for key in keys), again=True)

    def _do(
        self,
        does: str,
        operation: Callable[[], Any],
        keys: list[str] | None = None,
        timeout_s: float | None = None,
        again: bool = False,
    ) -> Any:
        """Who asks the same again has no turn before something was written, or nobody else has."""
        turns, seen = self._turns, self._seen

        def ready() -> bool:
            return not (again and seen == (does, turns.version)) and all(key in self._values for key in keys or [])

        with turns.changed:
            turns.take(self._who, does, ready, timeout_s)
            self._seen = (does, turns.version) if again else None
            return operation()

    def _write(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._turns.version += 1

    def _count(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        if amount or key not in self._values:
            self._write(key, str(total).encode())
        return total


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Each run of the case: who opened what, what join gave, and who waits for ever."""
    return [take_turns(learner, run) for run in case["runs"]]


def take_turns(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """All processes that come join once in each round."""
    turns = Turns(case)
    gave: dict[str, dict[str, Any]] = {}
    errors: list[BaseException] = []

    def be(who: int, rounds: list[dict[str, Any]]) -> None:
        store: list[TurnStore] = []

        def open_store(host: str, port: int, listen: bool, timeout_s: float | None = None) -> TurnStore:
            if not store:
                values = open_pretended(turns, who, rounds[0]["host"], (host, int(port)), listen, timeout_s)
                store.append(TurnStore(turns, who, values))
            return store[0]

        try:
            for task in rounds:
                gave.setdefault(str(who), {})[str(task["round"])] = outcome(learner, task, open_store)
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            with turns.changed:
                turns.stop("raised")
        finally:
            turns.end(who)

    threads = [threading.Thread(target=be, args=each, daemon=True) for each in enumerate(case["tasks"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors and not turns.opened:
        raise errors[0]
    waits = {str(who): turns.does[who] for who in range(turns.size) if who not in turns.ended or who in turns.waits}
    error = f"{type(errors[0]).__name__}: {errors[0]}" if errors else None
    expired = {str(who): asked for who, asked in turns.expired.items()}
    return {
        "gave": gave,
        "opened": turns.opened,
        "stuck": turns.stopped,
        "waits": waits,
        "expired": expired,
        "error": error,
    }


def open_pretended(
    turns: Turns, who: int, own: str, where: tuple[str, int], listen: bool, timeout_s: float | None
) -> dict[str, bytes]:
    """Listen, or connect when somebody does; the store's values."""
    with turns.changed:
        turns.opened.append([who, *where, bool(listen)])
        does = f"open_store({where[0]}:{where[1]}, listen={bool(listen)})"
        turns.take(who, does, lambda: listen or where in turns.stores, timeout_s)
        if listen and where[0] != own:
            raise OSError(f"{own} cannot listen at {where[0]}: that is another host")
        if listen and where in turns.stores:
            raise OSError(f"cannot listen at {where[0]}:{where[1]}: address already in use")
        turns.version += 1
        return turns.stores.setdefault(where, {}) if listen else turns.stores[where]


def outcome(learner: ModuleType, task: dict[str, Any], open_store: Callable[..., Any]) -> dict[str, Any]:
    """What join returned, or which nodes it missed."""
    try:
        world = learner.join(learner.Task(**task), open_store)
    except learner.NodesMissing as error:
        return {"missing": [int(node) for node in error.nodes]}
    except TimeoutError as error:
        return {"timeout": str(error)}
    return {"rank": world.rank, "world_size": world.world_size, "hosts": list(world.hosts)}


class RealStore:
    """torch's own, with time in seconds."""

    def __init__(self, store: dist.TCPStore, timeout_s: float) -> None:
        self._store, self._timeout_s = store, timeout_s
        self.set, self.get, self.add, self.check = store.set, store.get, store.add, store.check

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        try:
            self._store.wait(keys, timedelta(seconds=timeout_s or self._timeout_s))
        except dist.DistStoreError as error:
            raise TimeoutError(str(error)) from None


def meet(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Join in a process of its own, by a real TCPStore whose port the system chose."""
    who = int(os.environ["RANK"])
    task = case["tasks"][who]
    store: list[dist.TCPStore] = []

    def open_store(host: str, port: int, listen: bool, timeout_s: float | None = None) -> RealStore:
        if not store:
            store.append(open_real(Path(f"{host}-{port}"), listen, timeout_s or task["timeout_s"]))
        return RealStore(store[0], task["timeout_s"])

    found = outcome(learner, task, open_store)
    with contextlib.suppress(dist.DistError):  # who serves the store leaves last
        if store and who:
            store[0].set(f"served/{who}", "")
        elif store:
            store[0].wait([f"served/{other}" for other in range(1, len(case["tasks"]))], timedelta(seconds=5))
    return found


def open_real(place: Path, listen: bool, timeout_s: float) -> dist.TCPStore:
    """The pretended host and port are a file that says where the store really is."""
    if listen:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place.with_suffix(".new").write_text(str(store.port))
        place.with_suffix(".new").rename(place)
        return store
    ends = time.monotonic() + timeout_s
    while not place.exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"nobody listened at {place} within {timeout_s} s")
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(place.read_text()), is_master=False, wait_for_workers=False)

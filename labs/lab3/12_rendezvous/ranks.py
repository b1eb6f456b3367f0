"""Run the learner's join on simulated hosts whose processes run in turn, in an order from a seed; then for real."""

import contextlib
import functools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from frog.learn.grader.turns import Turns, TurnStore, pretend_clock

PATIENCE = 10
"""Multiple of timeout_s during which processes may poll while no process writes."""
ROUNDING_S = 1e-6
pretend_clock()


def work(learner: ModuleType, case: dict[str, Any]) -> list[dict[str, Any]]:
    """Run each world of the case; return opened stores, results of join, and processes that wait forever."""
    return [take_turns(learner, run) for run in case["runs"]]


def take_turns(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let all present processes join once in each round."""
    hosts = Hosts(case)
    gave: dict[str, dict[str, Any]] = {}
    took_s: dict[str, float] = {}

    def be(who: int) -> None:
        rounds = case["tasks"][who]
        hosts.hold_back(who)
        store: list[TurnStore] = []

        def open_store(host: str, port: int, listen: bool, timeout_s: float | None = None) -> TurnStore:
            if not store:
                store.append(hosts.open(who, rounds[0]["host"], (host, int(port)), bool(listen), timeout_s))
            return store[0]

        for task in rounds:
            began_s = hosts.turns.now_s
            gave.setdefault(str(who), {})[str(task["round"])] = outcome(learner, task, open_store)
            took_s[str(who)] = hosts.turns.now_s - began_s

    turns = hosts.turns
    errors = turns.run([functools.partial(be, who) for who in range(len(case["tasks"]))])
    if errors and not hosts.opened:
        raise errors[0]
    return {
        "gave": gave,
        "opened": hosts.opened,
        "stuck": turns.stopped,
        "waits": {str(who): turns.does.get(who, "") for who in sorted(turns.waiting)},
        "took_s": took_s,
        "error": f"{type(errors[0]).__name__}: {errors[0]}" if errors else None,
    }


class PatientStore(TurnStore):
    """A store on which a wait far beyond the requested time never ends, and which notices missing cards."""

    def __init__(self, hosts: "Hosts", *about: Any) -> None:
        super().__init__(hosts.turns, *about)
        self._hosts = hosts

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        try:
            super().wait(keys, self._hosts.patient(timeout_s))
        except TimeoutError:
            self._hosts.missed()
            raise

    def check(self, keys: list[str]) -> bool:
        if not (there := super().check(keys)):
            self._hosts.missed()
        return there


class Hosts:
    """The simulated hosts: where a process listens, and where each process connected."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.timeout_s, self.late = case["timeout_s"], case["late"]
        self.all_come = not case["absent"] and not self.late
        quick = self.late[0] if self.late else None
        self.turns = Turns(case["seed"], len(case["tasks"]), PATIENCE * self.timeout_s, quick)
        self._late_s = self.turns.now_s + self.timeout_s - ROUNDING_S
        self._is_missed = False
        self.stores: dict[tuple[str, int], dict[str, bytes]] = {}
        self.opened: list[list[Any]] = []

    def patient(self, timeout_s: float | None) -> float | None:
        """Return the deadline in effect: None if all nodes arrive, or if it is not the requested one."""
        return None if self.all_come or timeout_s is None or timeout_s > 1.5 * self.timeout_s else timeout_s

    def hold_back(self, who: int) -> None:
        """Let a late process arrive when another's time is up, but before that one checks which nodes are missing."""
        if who in self.late:
            self.turns.do(who, "comes late", is_ready=lambda: self._is_missed)

    def missed(self) -> None:
        """Record that a process did not find a card."""
        self._is_missed = self._is_missed or self.turns.now_s > self._late_s

    def open(self, who: int, own: str, where: tuple[str, int], listen: bool, timeout_s: float | None) -> TurnStore:
        """Listen, or connect once a process listens."""

        def join() -> dict[str, bytes]:
            if not listen:
                return self.stores[where]
            if where[0] != own:
                raise OSError(f"{own} cannot listen at {where[0]}: that is another host")
            if where in self.stores:
                raise OSError(f"cannot listen at {where[0]}:{where[1]}: address already in use")
            self.turns.write()
            return self.stores.setdefault(where, {})

        self.opened.append([who, *where, listen])
        values = self.turns.do(
            who,
            f"open_store({where[0]}:{where[1]}, listen={listen})",
            join,
            is_ready=lambda: listen or where in self.stores,
            timeout_s=self.patient(timeout_s),
        )
        return PatientStore(self, who, values, set())


def outcome(learner: ModuleType, task: dict[str, Any], open_store: Callable[..., Any]) -> dict[str, Any]:
    """Return the result of join, or the nodes that it missed."""
    try:
        world = learner.join(learner.Task(**task), open_store)
    except learner.NodesMissing as error:
        return {"missing": [node if type(node) is int else str(node) for node in error.nodes]}
    except TimeoutError as error:
        return {"timeout": str(error)}
    return {"rank": world.rank, "world_size": world.world_size, "hosts": list(world.hosts)}


class RealStore:
    """torch's TCPStore, with time in seconds."""

    def __init__(self, store: dist.TCPStore, timeout_s: float) -> None:
        self._store, self._timeout_s = store, timeout_s
        self.set, self.get, self.add, self.check = store.set, store.get, store.add, store.check

    def wait(self, keys: list[str], timeout_s: float | None = None) -> None:
        try:
            self._store.wait(keys, timedelta(seconds=timeout_s or self._timeout_s))
        except dist.DistStoreError as error:
            raise TimeoutError(str(error)) from None


def meet(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Join in a separate process, through a real TCPStore whose port the system chose."""
    who = int(os.environ["RANK"])
    task = case["tasks"][who]
    store: list[dist.TCPStore] = []

    def open_store(host: str, port: int, listen: bool, timeout_s: float | None = None) -> RealStore:
        if not store:
            store.append(open_real(Path(f"{host}-{port}"), listen))
        return RealStore(store[0], task["timeout_s"])

    found = outcome(learner, task, open_store)
    with contextlib.suppress(dist.DistError):  # the process that serves the store leaves last
        if store and who:
            store[0].set(f"served/{who}", "")
        elif store:
            store[0].wait([f"served/{other}" for other in range(1, len(case["tasks"]))], timedelta(seconds=5))
    return found


def open_real(place: Path, listen: bool) -> dist.TCPStore:
    """Open the real store; a file named after the simulated host and port contains its real address."""
    if listen:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        place.with_suffix(".new").write_text(str(store.port))
        place.with_suffix(".new").rename(place)
        return store
    while not place.exists():  # a process that never listens has failed, and ends this world
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(place.read_text()), is_master=False, wait_for_workers=False)

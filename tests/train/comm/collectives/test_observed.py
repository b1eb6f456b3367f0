"""An observer's view of Frog's collectives: nested operations, messages and counters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import together

from frog.core.runs.observer import Observer, observing
from frog.train.comm.collectives.group import OPERATIONS, Group
from frog.train.comm.collectives.rendezvous import FolderBook
from frog.train.comm.collectives.shared_memory import SMALL, usable
from frog.train.comm.elastic.entrance import meet_survivors

X = np.ones(4)
CALLS: dict[str, Callable[[Any], None]] = {
    "all_reduce": lambda group: group.all_reduce(X.copy()),
    "all_gather": lambda group: group.all_gather([X.copy()], X),
    "reduce_scatter": lambda group: group.reduce_scatter(X.copy(), [X]),
    "broadcast": lambda group: group.broadcast(X.copy(), 0),
    "reduce": lambda group: group.reduce(X.copy(), 0),
    "gather": lambda group: group.gather(X, [X.copy()], 0),
    "scatter": lambda group: group.scatter(X.copy(), [X], 0),
    "all_to_all": lambda group: group.all_to_all([X.copy()], [X]),
    "barrier": lambda group: group.barrier(),
}


class Seen(Observer):
    """Records the actions of the thread that created it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.reports: list[str] = []

    def note(self, report: str) -> None:
        if threading.get_ident() == self.thread:
            self.reports.append(report)

    def operation_begins(self, name: str) -> None:
        self.note(f"({name}")

    def operation_ends(self, name: str) -> None:
        self.note(")")

    def message_leaves(self, sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
        self.note(f"send {sum(map(len, parts)) - len(parts[0])}")

    def message_arrives(self) -> None:
        self.note("receive")

    def counter_rises(self, counter: int, value: int) -> None:
        self.note(f"counter {counter}")


@pytest.mark.parametrize("name", OPERATIONS)
def test_observer_sees_the_operations_of_an_elastic_world(name: str, tmp_path: Path) -> None:
    with observing(seen := Seen()):
        world = meet_survivors(FolderBook(tmp_path, 5), 0, 1, b"secret")
        CALLS[name](world)
        world.close()
    inner = "(barrier(all_reduce))" if name == "barrier" else f"({name})"
    assert "".join(seen.reports) == f"(agreement)({name}{inner}(barrier(all_reduce)))"


@pytest.mark.parametrize(
    "memory", [False, pytest.param(True, marks=pytest.mark.skipif(not usable(), reason="no room"))]
)
def test_observer_sees_messages_and_counters(memory: bool, tmp_path: Path) -> None:
    def act(group: Group) -> list[str]:
        with observing(seen := Seen()):
            group.all_reduce(X.copy())
        return seen.reports

    for reports in together(tmp_path, 2, act, memory=memory):
        assert (reports[0], reports[-1]) == ("(all_reduce", ")")
        told = set(reports[1:-1])
        assert told == ({f"counter {SMALL}"} if memory else {f"send {X.nbytes}", "receive"})

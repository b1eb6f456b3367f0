"""Killing a process in the middle of one of Frog's own collectives, at a chosen message, byte or counter."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from frog.core.runs.observer import Observer
from frog.train.comm.collectives.group import OPERATIONS
from frog.train.comm.collectives.shared_memory import COUNTERS


@dataclass
class _PlannedKill:
    """A planned SIGKILL of this process."""

    left: Iterator[int]
    """How many signs of life precede it, counted down at each one."""
    wanted: Callable[[str], bool]
    sent_bytes: int | None
    is_over: bool = False


class CollectiveKills(Observer):
    """Kills this process inside a collective, at a sign of life that its peers see: a send, a receive, a counter."""

    def __init__(self) -> None:
        self._kills: list[_PlannedKill] = []
        self._thread = threading.local()

    def kill_after(self, signs: int, wanted: Callable[[str], bool], sent_bytes: int | None = None) -> None:
        """Kill this process just before the next sign of life after `signs` more, if the kill is still wanted.

        wanted: called with the current place.
        sent_bytes: kill it at its next message from then on, after sending this many bytes; None: at any sign.
        """
        self._kills.append(_PlannedKill(itertools.count(signs, -1), wanted, sent_bytes))

    def operation_begins(self, name: str) -> None:
        self._operations.append(name)

    def operation_ends(self, name: str) -> None:
        if self._operations:  # otherwise the operation began before this observer was added
            self._operations.pop()

    def message_leaves(self, sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
        for kill in self._due(is_message=True):
            message = b"".join(parts)[: kill.sent_bytes or 0]
            place = f"with {len(message)} of {sum(map(len, parts))} bytes of a message sent"
            if kill.wanted(f"{self._place()}, {place}"):
                with contextlib.suppress(OSError):
                    sock.send(message)
                os.kill(os.getpid(), signal.SIGKILL)

    def message_arrives(self) -> None:
        self._kill_at("before it received")

    def counter_rises(self, counter: int, value: int) -> None:
        self._kill_at(f"before it published {COUNTERS[counter]} {value}")

    def _kill_at(self, last_sign: str) -> None:
        for kill in self._due(is_message=False):
            if kill.wanted(f"{self._place()}, {last_sign}"):
                os.kill(os.getpid(), signal.SIGKILL)

    def _due(self, is_message: bool) -> Iterator[_PlannedKill]:
        """Count a sign of life; yield the kills that are due."""
        for kill in self._kills:
            if not kill.is_over and next(kill.left) <= 0 and (is_message or kill.sent_bytes is None):
                kill.is_over = True
                yield kill

    @property
    def _operations(self) -> list[str]:
        """The operations that this thread is in, outermost first."""
        operations: list[str] = self._thread.__dict__.setdefault("operations", [])
        return operations

    def _place(self) -> str:
        """Describe what this thread currently does in Frog's own collectives."""
        names = self._operations
        collective = next((name for name in names if name in OPERATIONS), None)
        if "agreement" in names:
            return f"in the agreement after {collective or 'no collective'}"
        if "entry" in names:
            return "while joining"
        if collective is None:
            return "between two collectives"
        behind = "barrier" in names[names.index(collective) + 1 :]
        return f"in the barrier after {collective}" if behind else f"in {collective}"

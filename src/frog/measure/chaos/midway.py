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
class _Death:
    """A planned death."""

    left: Iterator[int]
    """How many signs of life precede it, counted down at each one."""
    wanted: Callable[[str], bool]
    sent_bytes: int | None
    is_over: bool = False


class Midway(Observer):
    """Counts the signs of life that this process's peers see in a collective: sends, receives, counters."""

    def __init__(self) -> None:
        self._deaths: list[_Death] = []
        self._thread = threading.local()

    def die_after(self, signs: int, wanted: Callable[[str], bool], sent_bytes: int | None = None) -> None:
        """Kill this process just before the next sign of life after `signs` more, if the death is still wanted.

        wanted: called with the current place.
        sent_bytes: kill it at its next message from then on, after sending this many bytes; None: at any sign.
        """
        self._deaths.append(_Death(itertools.count(signs, -1), wanted, sent_bytes))

    def operation_begins(self, name: str) -> None:
        self._operations.append(name)

    def operation_ends(self, name: str) -> None:
        if self._operations:  # otherwise the operation began before this observer was added
            self._operations.pop()

    def message_leaves(self, sock: socket.socket, parts: Sequence[bytes | memoryview]) -> None:
        for death in self._due(is_message=True):
            message = b"".join(parts)[: death.sent_bytes or 0]
            place = f"with {len(message)} of {sum(map(len, parts))} bytes of a message sent"
            if death.wanted(f"{self._place()}, {place}"):
                with contextlib.suppress(OSError):
                    sock.send(message)
                os.kill(os.getpid(), signal.SIGKILL)

    def message_arrives(self) -> None:
        self._die("before it received")

    def counter_rises(self, counter: int, value: int) -> None:
        self._die(f"before it published {COUNTERS[counter]} {value}")

    def _die(self, last_sign: str) -> None:
        for death in self._due(is_message=False):
            if death.wanted(f"{self._place()}, {last_sign}"):
                os.kill(os.getpid(), signal.SIGKILL)

    def _due(self, is_message: bool) -> Iterator[_Death]:
        """Count a sign of life; yield the deaths that are due."""
        for death in self._deaths:
            if not death.is_over and next(death.left) <= 0 and (is_message or death.sent_bytes is None):
                death.is_over = True
                yield death

    @property
    def _operations(self) -> list[str]:
        """The operations that this thread is in, outermost first."""
        found: list[str] = self._thread.__dict__.setdefault("operations", [])
        return found

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

"""Ranks that die here: each can speak only so often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from frog.collectives.connection import Connection
from frog.collectives.survivors import Survivors
from frog.collectives.waiting import Waiter

limits = threading.local()
"""`left`: how often the rank of this thread can still speak; None for ever."""


class Killed(Exception):
    """Of a rank that is to die here."""


def limited(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of the functions through which a rank speaks."""

    def act(*args: Any) -> Any:
        left = getattr(limits, "left", None)
        if left is not None:
            if left == 0:
                raise Killed
            limits.left = left - 1
        return function(*args)

    return act


def make_mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the ranks of this test die as `limits` says."""
    monkeypatch.setattr(Connection, "_send_some", limited(Connection._send_some))
    monkeypatch.setattr(Connection, "_receive_some", limited(Connection._receive_some))
    monkeypatch.setattr(Waiter, "say", limited(Waiter.say))


def die(world: Survivors) -> None:
    """As the system does it: every connection is closed, whatever was on its way."""
    world.group.messages.close()
    for connection in (*world.group.mesh.connections.values(), *world._lines.values()):
        connection.socket.close()

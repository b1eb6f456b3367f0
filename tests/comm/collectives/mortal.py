"""Ranks that die here: each can speak only so often."""

from __future__ import annotations

import threading

from frog.comm.elastic.survivors import Survivors
from frog.runs.observer import Observer

limits = threading.local()
"""`left`: how often the rank of this thread can still speak; None for ever."""


class Killed(Exception):
    """Of a rank that is to die here."""


class Mortal(Observer):
    """Ends ranks as `limits` says."""

    def message_leaves(self, *message: object) -> None:
        self.count()

    def message_arrives(self) -> None:
        self.count()

    def counter_rises(self, *counter: object) -> None:
        self.count()

    def count(self) -> None:
        left = getattr(limits, "left", None)
        if left is not None:
            if left == 0:
                raise Killed
            limits.left = left - 1


def die(world: Survivors) -> None:
    """As the system does it: every connection is closed, whatever was on its way."""
    world.group.messages.close()
    for connection in (*world.group.mesh.connections.values(), *world._lines.values()):
        connection.socket.close()

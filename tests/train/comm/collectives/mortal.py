"""Ranks with a limited number of signs of life, after which they die."""

from __future__ import annotations

import threading

from frog.core.runs.observer import Observer
from frog.train.comm.elastic.survivors import Survivors

limits = threading.local()
"""`left`: how many signs of life this thread's rank has left; None: unlimited."""


class Killed(Exception):
    """Raised in a rank that dies here."""


class Mortal(Observer):
    """Ends ranks according to `limits`."""

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
    """Close every connection, including bytes in transit, as the operating system would."""
    world.group.messages.close()
    for connection in (*world.group.mesh.connections.values(), *world._lines.values()):
        connection.socket.close()

"""The messages between the judge and a learner's process, in frames.

From the rank: `hello` (rank, token), `ready` (its CPU seconds so far), `enter`, `wait`, `violation` (id, description),
`error`, `result`. From the judge: the task, a frame once all ranks are ready, and then a frame for each operation that
may begin.
"""

from __future__ import annotations

import socket
from typing import Any

from frog.learn.grader.codec import Frames, pack


class Line:
    """The rank's end of the connection, which blocks until a frame arrives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._waiting: list[Any] = []

    def send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(pack(message))

    def answer(self) -> dict[str, Any]:
        """Return the next frame. Raises EOFError once the other end has closed."""
        while not self._waiting:
            if not (data := self._connection.recv(1 << 20)):
                raise EOFError
            self._waiting.extend(self._frames.feed(data))
        first: dict[str, Any] = self._waiting.pop(0)
        return first

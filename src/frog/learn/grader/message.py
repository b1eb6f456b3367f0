"""What the judge and a learner's process say to each other, in frames.

From the rank: `hello` (rank, token), `ready` (its seconds of computing so far), `enter`, `wait`, `violation` (id, what
was seen), `error`, `result`. From the judge: what is to be done, a frame once all are ready, and later one for each
operation that may begin.
"""

from __future__ import annotations

import socket
from typing import Any

from frog.learn.grader.codec import Frames, pack


class Line:
    """One end of the connection that blocks until a frame is there: the rank's."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._waiting: list[Any] = []

    def send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(pack(message))

    def answer(self) -> dict[str, Any]:
        """The next frame. Raises EOFError once the other end is gone."""
        while not self._waiting:
            if not (data := self._connection.recv(1 << 20)):
                raise EOFError
            self._waiting.extend(self._frames.feed(data))
        first: dict[str, Any] = self._waiting.pop(0)
        return first

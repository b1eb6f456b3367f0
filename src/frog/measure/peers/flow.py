"""One direction of a connection: bytes that were read and will be forwarded, now or later."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections import deque
from dataclasses import dataclass, field

from frog.measure.peers.observed import Pair, Shape

BUFFER_BYTES = 256 << 10
"""Capacity of each buffer of a link: a sender without a receiver must block."""
_PIECES = (1, 1, 2, 5, 3, 509, 1, 7, 1021)
_PAUSE_S = 0.002
"""Pause between two pieces: the receiver wakes up for each."""
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Flow:
    """Bytes from `source` to `sink`."""

    pair: Pair
    source: socket.socket
    sink: socket.socket
    shape: Shape
    is_over: bool = False
    """True when nothing will move any more."""
    _waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    """Waiting pieces, with the time at which each is due."""
    _held: int = 0
    _ended: bool = False
    """True when the source will send no more."""
    _last: float = 0.0
    """Time at which the last waiting piece will have passed the link's rate limit."""
    _sizes: itertools.cycle[int] = field(default_factory=lambda: itertools.cycle(_PIECES))

    @property
    def wants(self) -> bool:
        """True if there is room for more bytes."""
        return not self._ended and self._held < BUFFER_BYTES

    def due_in(self, now: float) -> float | None:
        """Return the seconds until the next piece is due."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None

    def read(self) -> bytes:
        """Read the bytes that the source has sent; empty if there are none, or if it has ended."""
        try:
            data = self.source.recv(BUFFER_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self._ended = self._ended or not data
        return data

    def take(self, data: bytes, now: float) -> None:
        """Queue bytes, each piece with the time at which it is due."""
        view = memoryview(data)
        while view:
            size = next(self._sizes) if self.shape.in_pieces else len(view)
            piece, view = view[:size], view[size:]
            takes_s = _PAUSE_S if self.shape.in_pieces else 0.0
            if self.shape.bytes_per_s is not None:
                takes_s += len(piece) / self.shape.bytes_per_s
            self._last = max(now, self._last) + takes_s
            self._waiting.append((self._last + self.shape.delay_s, piece))
        self._held += len(data)

    def write(self, now: float) -> bool:
        """Forward the pieces that are due; return True if any were sent."""
        went = False
        while self._waiting and self._waiting[0][0] <= now:
            due, piece = self._waiting.popleft()
            try:
                sent = self.sink.send(piece)
            except BlockingIOError:
                sent = 0
            except OSError:  # the receiver is gone
                self._waiting.clear()
                self._ended = self.is_over = True
                return went
            self._held -= sent
            went = went or sent > 0
            if sent < len(piece):
                self._waiting.appendleft((due, piece[sent:]))
                return went
        return went

    def finish(self) -> None:
        """Tell the sink that no more will come, once everything has been forwarded."""
        if self._ended and not self._waiting and not self.is_over:
            with contextlib.suppress(OSError):
                self.sink.shutdown(socket.SHUT_WR)
            self.is_over = True

    def reset(self) -> None:
        """Reset the connection, like a router that has lost its state."""
        with contextlib.suppress(OSError):
            self.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._waiting.clear()
        self._ended = self.is_over = True

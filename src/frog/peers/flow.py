"""One direction of a connection: bytes that were read and are due to be passed on, now or later."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections import deque
from dataclasses import dataclass, field

from frog.peers.observed import Pair, Shape

BUFFER_BYTES = 256 << 10
"""What a link holds, in each of its buffers: a sender that nobody receives from must come to a halt."""
_PIECES = (1, 1, 2, 5, 3, 509, 1, 7, 1021)
_PAUSE_S = 0.002
"""Between two pieces: the receiver wakes up for each."""
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Flow:
    """Bytes from `source` to `sink`."""

    pair: Pair
    source: socket.socket
    sink: socket.socket
    shape: Shape
    is_over: bool = False
    """Nothing will move any more."""
    _waiting: deque[tuple[float, memoryview]] = field(default_factory=deque)
    """When each is due."""
    _held: int = 0
    _ended: bool = False
    """The source will send no more."""
    _last: float = 0.0
    """When the last that waits is through the link's rate."""
    _sizes: itertools.cycle[int] = field(default_factory=lambda: itertools.cycle(_PIECES))

    @property
    def wants(self) -> bool:
        """Whether there is room for more."""
        return not self._ended and self._held < BUFFER_BYTES

    def due_in(self, now: float) -> float | None:
        """Seconds until something is to be passed on."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None

    def read(self) -> bytes:
        """What the source has sent; empty if nothing, or if it has ended."""
        try:
            data = self.source.recv(BUFFER_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        self._ended = self._ended or not data
        return data

    def take(self, data: bytes, now: float) -> None:
        """Put bytes in line, each when it is due."""
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
        """Pass on what is due; whether anything went."""
        went = False
        while self._waiting and self._waiting[0][0] <= now:
            due, piece = self._waiting.popleft()
            try:
                sent = self.sink.send(piece)
            except BlockingIOError:
                sent = 0
            except OSError:  # who should have it is gone
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
        """Tell the sink, once all has been passed on, that no more will come."""
        if self._ended and not self._waiting and not self.is_over:
            with contextlib.suppress(OSError):
                self.sink.shutdown(socket.SHUT_WR)
            self.is_over = True

    def reset(self) -> None:
        """Break the connection as a router does that has forgotten it."""
        with contextlib.suppress(OSError):
            self.source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._waiting.clear()
        self._ended = self.is_over = True

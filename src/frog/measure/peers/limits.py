"""Upper limits for any collective: the speed of memory copies and of plain sockets on this machine."""

from __future__ import annotations

import contextlib
import os
import socket

from frog.train.comm.collectives.connection import SOCKET_BUFFER_BYTES, Bytes


class Around:
    """A ring of sockets that carries only the bytes: no headers, no sums, no choice of algorithm."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0))
        _widen(self._listener)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        """The address at which the previous rank reaches this one."""

    def connect(self, after: tuple[str, int]) -> None:
        """Connect to the next and the previous rank."""
        self._after = socket.socket()
        _widen(self._after)
        self._after.connect(after)
        self._before = self._listener.accept()[0]
        self._listener.close()
        self._after.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for sock in (self._after, self._before):
            sock.setblocking(False)

    def pass_on(self, leave: Bytes, arrive: Bytes) -> None:
        """Send to the next rank, and receive from the previous one, concurrently."""
        sent = received = 0
        while sent < len(leave) or received < len(arrive):
            before = sent + received
            with contextlib.suppress(BlockingIOError):
                sent += self._after.send(leave[sent:]) if sent < len(leave) else 0
            with contextlib.suppress(BlockingIOError):
                received += self._before.recv_into(arrive[received:]) if received < len(arrive) else 0
            if sent + received == before:
                os.sched_yield()

    def close(self) -> None:
        self._after.close()
        self._before.close()


def _widen(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)

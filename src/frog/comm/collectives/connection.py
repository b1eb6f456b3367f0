"""A connection to a peer, and many transfers under way at once.

A transfer is one frame. Those of a connection go, and come, in the order in which they were asked for; those of
different connections in whatever order the network likes. `complete` moves bytes wherever the system takes or has
some, and sleeps in `poll` where it has not, so that no rank waits for a send while its peer waits for the same: both
directions are open at once.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from frog.comm.collectives.errors import Alarm, Mismatch, PeerClosed, TimedOut
from frog.comm.collectives.frames import HEADER_BYTES, Header, Sealer
from frog.runs.observer import OBSERVERS

Bytes = memoryview

NOTHING = memoryview(bytearray())
SOCKET_BUFFER_BYTES = 4 << 20
_YIELDS = 10
"""How often a rank gives its processor away before it sleeps: an answer on its way is there before a sleeper wakes."""


def _nothing() -> None:
    return


class Bell(Protocol):
    """Something to listen to while waiting for something else: it rings when its socket can be read."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def peer(self) -> int: ...


class Connection:
    """One socket to one peer, with what is to go out and to come in."""

    def __init__(self, sock: socket.socket, peer: int, sending: Sealer, receiving: Sealer) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.peer = sock, peer
        self.sending, self.receiving = sending, receiving
        self.sent_bytes = self.received_bytes = 0
        self.outgoing: deque[_Outgoing] = deque()
        self.incoming: deque[_Incoming] = deque()

    def send(self, kind: int, seq: int, payload: Bytes = NOTHING, tag: int = 0) -> None:
        """Queue a frame. The payload must stay as it is until the frame is out."""
        self.outgoing.append(_Outgoing(self.sending.header(kind, seq, payload, tag), payload))

    def receive(
        self, kind: int, seq: int, payload: Bytes = NOTHING, tag: int = 0, then: Callable[[], None] = _nothing
    ) -> None:
        """Expect a frame of just this kind and size; `then` is called when all of it is in `payload`."""
        self.incoming.append(_Incoming(Header(kind, seq & 0xFFFFFFFF, len(payload), 0, tag), payload, then))

    def move(self) -> bool:
        """Send and receive what can be without waiting. Returns whether anything moved.

        From a peer that has closed its end, what it had sent before is received, then PeerClosed is raised.
        """
        moved, closed = False, None
        if self.outgoing:
            try:
                while self.outgoing and self._send_some():
                    moved = True
            except BlockingIOError:
                pass
            except OSError as error:
                closed = PeerClosed(self.peer, error.strerror or str(error))
        if self.incoming:
            try:
                while self.incoming and self._receive_some():
                    moved = True
            except BlockingIOError:
                pass
            except OSError as error:
                raise PeerClosed(self.peer, error.strerror or str(error)) from error
        if closed is not None:
            raise closed
        return moved

    def _send_some(self) -> bool:
        head = self.outgoing[0]
        for observer in OBSERVERS:
            observer.message_leaves(self.socket, head.parts)
        num_bytes = self.socket.sendmsg(head.parts)
        self.sent_bytes += num_bytes
        if head.take(num_bytes):
            self.outgoing.popleft()
        return True

    def _receive_some(self) -> bool:
        head = self.incoming[0]
        for observer in OBSERVERS:
            observer.message_arrives()
        num_bytes = self.socket.recvmsg_into(head.parts)[0]
        if num_bytes == 0:
            raise PeerClosed(self.peer)
        self.received_bytes += num_bytes
        if head.take(num_bytes, self):
            self.incoming.popleft()
            head.then()
        return True

    def has_left(self) -> bool:
        """Whether the peer's end is closed, found without taking any byte."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def can_be_read(self) -> bool:
        """Whether something has come, or the end, found without taking any byte."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self.outgoing.clear()
        self.incoming.clear()
        self.socket.close()


class _Outgoing:
    """A frame on its way out."""

    __slots__ = ("parts",)

    def __init__(self, header: bytes, payload: Bytes) -> None:
        self.parts: list[memoryview | bytes] = [header, payload] if len(payload) else [header]

    def take(self, num_bytes: int) -> bool:
        """`num_bytes` more have gone. Returns whether that was all."""
        parts = self.parts
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if num_bytes:
            parts[0] = memoryview(parts[0])[num_bytes:]
        return not parts


class _Incoming:
    """A frame that is expected, and where it goes."""

    __slots__ = ("_expected", "_header", "_payload", "_seen", "parts", "then")

    def __init__(self, expected: Header, payload: Bytes, then: Callable[[], None]) -> None:
        self._expected, self._payload, self.then = expected, payload, then
        self._header = bytearray(HEADER_BYTES)
        self._seen: Header | None = None
        self.parts: list[memoryview] = [memoryview(self._header), payload]

    def take(self, num_bytes: int, connection: Connection) -> bool:
        """`num_bytes` more have come. Returns whether that was all."""
        parts = self.parts
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if num_bytes:
            parts[0] = parts[0][num_bytes:]
        if self._seen is None and len(parts) < 2:
            self._seen = self._open(connection)
        if parts and len(parts[0]):
            return False
        if self._seen is None:
            return False
        connection.receiving.check(self._seen, self._payload)
        return True

    def _open(self, connection: Connection) -> Header:
        seen, expected = connection.receiving.open(self._header), self._expected
        if (seen.kind, seen.seq, seen.num_bytes, seen.tag) != (
            expected.kind, expected.seq, expected.num_bytes, expected.tag,
        ):  # fmt: skip
            raise Mismatch(f"rank {connection.peer} of the group sent {seen}; expected {expected}", connection.peer)
        return seen


def complete(connections: Iterable[Connection], timeout_s: float, alarms: Sequence[Connection] = ()) -> None:
    """Return when everything that was queued on these connections, and what that led to, has moved.

    alarms: connections on which nothing is said unless something is wrong.

    Raises:  PeerClosed, TimedOut if nothing moves for `timeout_s`, Mismatch, Refused; Alarm.
    """
    connections = tuple(connections)
    while True:
        if _move(connections):
            continue
        busy = [one for one in connections if one.outgoing or one.incoming]
        if not busy:
            return
        for _ in range(_YIELDS):
            os.sched_yield()
            if _move(busy):
                break
        else:
            wait_for(busy, timeout_s, alarms)


def _move(connections: Sequence[Connection]) -> bool:
    """Move what can be on all of them. Returns whether anything did."""
    moved = False
    for connection in connections:
        moved |= connection.move()
    return moved


def wait_for(busy: list[Connection], timeout_s: float, alarms: Sequence[Connection] = ()) -> None:
    """Sleep until one of these can move. Raises TimedOut, or Alarm if an alarm can be read or has ended."""
    poll = Poll(alarms)
    for one in busy:
        poll.register(one.socket, (select.POLLOUT if one.outgoing else 0) | (select.POLLIN if one.incoming else 0))
    began_s = time.monotonic()
    if not poll.wait(timeout_s):
        raise TimedOut(time.monotonic() - began_s, [one.peer for one in busy])


class Poll:
    """select's `poll`, which an alarm ends."""

    def __init__(self, alarms: Sequence[Bell]) -> None:
        self._poll = select.poll()
        self._alarms = {one.socket.fileno(): one.peer for one in alarms}
        for descriptor in self._alarms:
            self._poll.register(descriptor, select.POLLIN)
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def wait(self, timeout_s: float) -> list[int]:
        """The descriptors of which something is true, none if nothing is in time. Raises Alarm."""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1e3)]
        for descriptor in ready:
            if descriptor in self._alarms:
                raise Alarm(self._alarms[descriptor])
        return ready


class Mesh:
    """The ranks of a group, seen from one of them: a connection to each other one."""

    def __init__(
        self,
        rank: int,
        size: int,
        connections: dict[int, Connection],
        timeout_s: float,
        alarms: Sequence[Connection] = (),
    ) -> None:
        self.rank, self.size, self.connections, self.timeout_s = rank, size, connections, timeout_s
        self.alarms = alarms

    @property
    def others(self) -> list[int]:
        """All but this one, the next one first, so that not everybody begins with the same rank."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def complete(self) -> None:
        complete(self.connections.values(), self.timeout_s, self.alarms)

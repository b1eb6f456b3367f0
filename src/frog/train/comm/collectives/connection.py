"""A connection to a peer, with many concurrent transfers.

A transfer is one frame. Frames of one connection travel in the order in which they were queued, in each direction;
frames of different connections in any order. `complete` moves bytes on every connection that is ready, and sleeps in
`poll` when none is, so no rank waits to send while its peer waits to send to it: both directions are open at the same
time.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from frog.core.runs.observer import OBSERVERS
from frog.train.comm.collectives.errors import Alarm, Mismatch, PeerClosed, TimedOut
from frog.train.comm.collectives.frames import HEADER_BYTES, FrameCodec, Header

Bytes = memoryview

NOTHING = memoryview(bytearray())
SOCKET_BUFFER_BYTES = 4 << 20
_YIELDS = 10
"""How often a rank yields its processor before it sleeps: waking from sleep takes longer than an answer in transit."""


def _nothing() -> None:
    return


def can_be_read(sock: socket.socket) -> bool:
    """True if bytes or the end of the stream have arrived. select.select would fail for descriptors from 1024 on."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class EventSource(Protocol):
    """Something to wait for besides the peers: its socket becomes readable when the event occurs."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def peer(self) -> int: ...


class Connection:
    """A socket to one peer, with its queued outgoing and incoming frames."""

    def __init__(self, sock: socket.socket, peer: int, sending: FrameCodec, receiving: FrameCodec) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.peer = sock, peer
        self.sending, self.receiving = sending, receiving
        self.sent_bytes = self.received_bytes = 0
        self.outgoing: deque[_Outgoing] = deque()
        self.incoming: deque[_Incoming] = deque()

    def send(self, kind: int, seq: int, payload: Bytes = NOTHING, tag: int = 0) -> None:
        """Queue a frame. The payload must not change until the frame has been sent."""
        self.outgoing.append(_Outgoing(self.sending.header(kind, seq, payload, tag), payload))

    def receive(
        self, kind: int, seq: int, payload: Bytes = NOTHING, tag: int = 0, then: Callable[[], None] = _nothing
    ) -> None:
        """Expect a frame of exactly this kind and size; `then` is called when `payload` is full."""
        self.incoming.append(_Incoming(Header(kind, seq & 0xFFFFFFFF, len(payload), 0, tag), payload, then))

    def move(self) -> bool:
        """Send and receive as much as possible without waiting. Return True if any bytes moved.

        If the peer has closed its end, receive the bytes that it sent before that, then raise PeerClosed.
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
        """True if the peer has closed its end; consumes no bytes."""
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def can_be_read(self) -> bool:
        """True if bytes or the end of the stream have arrived; consumes no bytes."""
        return can_be_read(self.socket)

    def close(self) -> None:
        self.outgoing.clear()
        self.incoming.clear()
        self.socket.close()


class _Outgoing:
    """An outgoing frame."""

    __slots__ = ("parts",)

    def __init__(self, header: bytes, payload: Bytes) -> None:
        self.parts: list[memoryview | bytes] = [header, payload] if len(payload) else [header]

    def take(self, num_bytes: int) -> bool:
        """Record that `num_bytes` more were sent. Return True if the frame is complete."""
        parts = self.parts
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if num_bytes:
            parts[0] = memoryview(parts[0])[num_bytes:]
        return not parts


class _Incoming:
    """An expected frame and its destination."""

    __slots__ = ("_expected", "_header", "_payload", "_seen", "parts", "then")

    def __init__(self, expected: Header, payload: Bytes, then: Callable[[], None]) -> None:
        self._expected, self._payload, self.then = expected, payload, then
        self._header = bytearray(HEADER_BYTES)
        self._seen: Header | None = None
        self.parts: list[memoryview] = [memoryview(self._header), payload]

    def take(self, num_bytes: int, connection: Connection) -> bool:
        """Record that `num_bytes` more arrived. Return True if the frame is complete."""
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
    """Return once everything queued on these connections, and every transfer that this triggered, has completed.

    alarms: connections that are silent unless something is wrong.

    Raises:  PeerClosed, TimedOut if nothing moves for `timeout_s`, Mismatch, Refused; Alarm.
    """
    connections = tuple(connections)
    while True:
        if _move(connections):
            continue
        busy = [connection for connection in connections if connection.outgoing or connection.incoming]
        if not busy:
            return
        for _ in range(_YIELDS):
            os.sched_yield()
            if _move(busy):
                break
        else:
            wait_for(busy, timeout_s, alarms)


def _move(connections: Sequence[Connection]) -> bool:
    """Move as many bytes as possible on all connections. Return True if any moved."""
    moved = False
    for connection in connections:
        moved |= connection.move()
    return moved


def wait_for(busy: list[Connection], timeout_s: float, alarms: Sequence[Connection] = ()) -> None:
    """Sleep until one of these can move. Raises TimedOut, or Alarm if an alarm becomes readable or closes."""
    poll = Poll(alarms)
    for connection in busy:
        events = select.POLLOUT if connection.outgoing else 0
        if connection.incoming:
            events |= select.POLLIN
        poll.register(connection.socket, events)
    began_s = time.monotonic()
    if not poll.wait(timeout_s):
        raise TimedOut(time.monotonic() - began_s, [connection.peer for connection in busy])


class Poll:
    """select's `poll`, interrupted by alarms."""

    def __init__(self, alarms: Sequence[EventSource]) -> None:
        self._poll = select.poll()
        self._alarms = {alarm.socket.fileno(): alarm.peer for alarm in alarms}
        for descriptor in self._alarms:
            self._poll.register(descriptor, select.POLLIN)
        self.register, self.unregister = self._poll.register, self._poll.unregister

    def wait(self, timeout_s: float) -> list[int]:
        """Return the ready descriptors; an empty list after the timeout. Raises Alarm."""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1e3)]
        for descriptor in ready:
            if descriptor in self._alarms:
                raise Alarm(self._alarms[descriptor])
        return ready


class Mesh:
    """The ranks of a group, seen from one of them: a connection to every other rank."""

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
        """All ranks but this one, starting with the next one, so that not all ranks begin with the same peer."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def complete(self) -> None:
        complete(self.connections.values(), self.timeout_s, self.alarms)

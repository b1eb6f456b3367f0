"""Send and receive, with tags, on separate connections.

Messages between two ranks with the same tag arrive in the order in which they were sent. A message that arrives before
its receive was posted waits in memory; when more than `BACKLOG_BYTES` wait, nothing more is read from that peer until
one is received.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from frog.train.comm.collectives.connection import Bytes, Connection
from frog.train.comm.collectives.errors import CollectiveError, Mismatch, PeerClosed, TimedOut
from frog.train.comm.collectives.frames import HEADER_BYTES, MESSAGE, Header
from frog.train.comm.collectives.under_way import UnderWay

BACKLOG_BYTES = 1 << 30


class Transfer(UnderWay):
    """A send or a receive: complete when the bytes have been sent, or have arrived."""

    def __init__(self, peer: int | None, tag: int, payload: Bytes) -> None:
        super().__init__()
        self.peer, self.tag, self.payload = peer, tag, payload


class Messages:
    """All messages of a group. A thread moves them while there are any."""

    def __init__(self, connections: dict[int, Connection], timeout_s: float) -> None:
        self._peers = {peer: _Peer(connection) for peer, connection in connections.items()}
        self._timeout_s = timeout_s
        self._wanted: list[Transfer] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._awake: int
        self._wake: int
        """The ends of the pipe that wakes the thread: open while the thread runs."""
        self._closed = False

    def send(self, peer: int, tag: int, payload: Bytes) -> Transfer:
        """Begin to send. The payload must not change until the transfer is complete."""
        transfer = Transfer(peer, tag, payload)
        with self._lock:
            one = self._peers[peer]
            if one.error is not None:
                transfer.finish(one.error)
            else:
                one.connection.send(MESSAGE, 0, payload, tag)
                one.leaving.append(transfer)
        self._stir()
        return transfer

    def receive(self, peer: int | None, tag: int, payload: Bytes) -> Transfer:
        """Begin to receive, from any rank if `peer` is None. `Transfer.peer` is the sender."""
        transfer = Transfer(peer, tag, payload)
        with self._lock:
            if not self._from_backlog(transfer):
                error = self._peers[peer].error if peer is not None else None
                if error is not None:
                    transfer.finish(error)
                else:
                    self._wanted.append(transfer)
        self._stir()
        return transfer

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stir()
        if self._thread is not None:
            self._thread.join()
            os.close(self._awake)
            os.close(self._wake)
        for peer in self._peers.values():
            peer.fail(CollectiveError("the group was closed"))
            peer.connection.close()
        for transfer in self._wanted:
            transfer.finish(CollectiveError("the group was closed"))

    def _stir(self) -> None:
        if self._thread is None and not self._closed:
            self._awake, self._wake = os.pipe()
            self._thread = threading.Thread(target=self._run, name="frog messages", daemon=True)
            self._thread.start()
        elif self._thread is not None:
            os.write(self._wake, b".")

    def _from_backlog(self, transfer: Transfer) -> bool:
        for number, peer in self._peers.items():
            if transfer.peer not in (None, number):
                continue
            for index, (header, data) in enumerate(peer.backlog):
                if header.tag == transfer.tag:
                    del peer.backlog[index]
                    peer.waiting_bytes -= len(data)
                    self._deliver(transfer, number, header, memoryview(data))
                    return True
        return False

    def _deliver(self, transfer: Transfer, peer: int, header: Header, data: Bytes) -> None:
        if len(data) != len(transfer.payload):
            text = f"rank {peer} of the group sent a message of {len(data)} bytes; expected {len(transfer.payload)}"
            transfer.finish(Mismatch(text, peer))
            return
        transfer.payload[:] = data
        transfer.peer = peer
        transfer.finish()

    def _run(self) -> None:
        moved_s, was_busy = 0.0, False
        while True:
            with self._lock:
                if self._closed:
                    return
                moved = sum(self._move(number, peer) for number, peer in self._peers.items() if peer.error is None)
                busy = self._busy()
            now_s = time.monotonic()
            if moved or not was_busy:  # idle time does not count as waiting
                moved_s = now_s
            elif now_s - moved_s > self._timeout_s:
                self._give_up(now_s - moved_s)
            was_busy = busy
            self._sleep(None if not busy else max(0.0, moved_s + self._timeout_s - now_s))

    def _busy(self) -> bool:
        return bool(self._wanted) or any(peer.leaving or peer.is_reading for peer in self._peers.values())

    def _sleep(self, longest_s: float | None) -> None:
        poll = select.poll()
        poll.register(self._awake, select.POLLIN)
        with self._lock:
            anybody = any(transfer.peer is None for transfer in self._wanted)
            sources = {transfer.peer for transfer in self._wanted}
            for number, peer in self._peers.items():
                events = select.POLLOUT if peer.leaving else 0
                if peer.is_reading or ((anybody or number in sources) and peer.waiting_bytes < BACKLOG_BYTES):
                    events |= select.POLLIN
                if events and peer.error is None:
                    poll.register(peer.connection.socket, events)
        for descriptor, _ in poll.poll(None if longest_s is None else longest_s * 1e3 + 1):
            if descriptor == self._awake:
                os.read(self._awake, 4096)

    def _move(self, number: int, peer: _Peer) -> bool:
        try:
            moved = peer.send_some()
            while self._reads(number, peer) and peer.read_some(self._claim):
                moved = True
                self._take(peer)
            return moved
        except (CollectiveError, OSError) as error:
            why = error if isinstance(error, CollectiveError) else PeerClosed(number, error.strerror or str(error))
            peer.fail(why)
            for transfer in [wanted for wanted in self._wanted if wanted.peer == number]:
                self._wanted.remove(transfer)
                transfer.finish(why)
            return True

    def _reads(self, number: int, one: _Peer) -> bool:
        """True if this peer should be read from now."""
        wanted = any(transfer.peer in (None, number) for transfer in self._wanted)
        return one.is_reading or (wanted and one.waiting_bytes < BACKLOG_BYTES)

    def _claim(self, number: int, header: Header) -> Transfer | None:
        """Return the posted receive that the starting message belongs to, if there is one."""
        for transfer in self._wanted:
            fits = transfer.peer in (None, number) and transfer.tag == header.tag
            if fits and len(transfer.payload) == header.num_bytes:
                self._wanted.remove(transfer)
                return transfer
            if fits:
                return None
        return None

    def _take(self, one: _Peer) -> None:
        """Deliver completely received messages to their receives."""
        for transfer in list(self._wanted):
            if one.backlog and self._from_backlog(transfer):
                self._wanted.remove(transfer)

    def _give_up(self, waited_s: float) -> None:
        with self._lock:
            for transfer in self._wanted:
                transfer.finish(TimedOut(waited_s, [-1 if transfer.peer is None else transfer.peer]))
            self._wanted.clear()
            for number, peer in self._peers.items():
                if peer.leaving:
                    peer.fail(TimedOut(waited_s, [number]))


class _Peer:
    """The messages of one peer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.leaving: deque[Transfer] = deque()
        self.backlog: list[tuple[Header, bytearray]] = []
        self.waiting_bytes = 0
        self.error: CollectiveError | None = None
        self._header = bytearray()
        self._seen: Header | None = None
        self._claimed: Transfer | None = None
        self._room: Bytes = memoryview(bytearray())
        self._num_read = 0

    @property
    def is_reading(self) -> bool:
        """True if a message has begun and is not complete yet."""
        return self._seen is not None or bool(self._header)

    def send_some(self) -> bool:
        before = len(self.connection.outgoing)
        if not before:
            return False
        moved = self.connection.move()
        for _ in range(before - len(self.connection.outgoing)):
            self.leaving.popleft().finish()
        return moved

    def read_some(self, claim: Callable[[int, Header], Transfer | None]) -> bool:
        """Read the available bytes of the next message. Return True if there were any."""
        connection = self.connection
        try:
            if self._seen is None:
                more = connection.socket.recv(HEADER_BYTES - len(self._header))
                if not more:
                    raise PeerClosed(connection.peer)
                self._header += more
                if len(self._header) < HEADER_BYTES:
                    return True
                self._begin(claim)
            if self._num_read < len(self._room):
                num_bytes = connection.socket.recv_into(self._room[self._num_read :])
                if not num_bytes:
                    raise PeerClosed(connection.peer)
                self._num_read += num_bytes
        except BlockingIOError:
            if self._seen is None or self._num_read < len(self._room):
                return False
        if self._num_read == len(self._room):
            self._end()
        return True

    def _begin(self, claim: Callable[[int, Header], Transfer | None]) -> None:
        header = self._seen = self.connection.receiving.open(self._header)
        self._header.clear()
        self._num_read = 0
        self._claimed = claim(self.connection.peer, header)
        if self._claimed is not None:
            self._room = self._claimed.payload
        elif header.num_bytes > BACKLOG_BYTES:
            raise Mismatch(f"an unexpected message of {header.num_bytes} bytes", self.connection.peer)
        else:
            self._room = memoryview(bytearray(header.num_bytes))

    def _end(self) -> None:
        header, self._seen = self._seen, None
        assert header is not None
        self.connection.receiving.check(header, self._room)
        if self._claimed is not None:
            self._claimed.peer = self.connection.peer
            self._claimed.finish()
            self._claimed = None
        else:
            data = self._room.obj
            assert isinstance(data, bytearray)
            self.backlog.append((header, data))
            self.waiting_bytes += len(data)
        self._room = memoryview(bytearray())

    def fail(self, error: CollectiveError) -> None:
        self.error = self.error or error
        for transfer in [*self.leaving, *([self._claimed] if self._claimed else [])]:
            transfer.finish(self.error)
        self.leaving.clear()

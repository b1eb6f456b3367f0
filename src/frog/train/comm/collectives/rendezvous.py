"""The rendezvous: how ranks find and authenticate each other, and connect each pair.

Every rank listens, writes its address into a store that all can read (torch's store, or any object with `set` and a
blocking `get`), and calls the ranks below its own; the ranks above call it. Caller and callee first prove to each
other that they know the group's secret:

    called  -> caller   16 random bytes
    caller  -> called   its rank, 16 random bytes, and a keyed hash over both sides' bytes and the group's name
    called  -> caller   a keyed hash over the same, the other way round

Steps:   one and a half round trips per pair; n - 1 connections per rank.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from frog.core.files import write_atomic
from frog.train.comm.collectives.connection import SOCKET_BUFFER_BYTES, Connection, EventSource, Poll
from frog.train.comm.collectives.errors import Alarm, CollectiveError, TimedOut
from frog.train.comm.collectives.frames import MAGIC, VERSION, FrameCodec, keys_of

_NONCE_BYTES = 16
_PROOF_BYTES = 16
_HELLO = struct.Struct("!HBxI16s16s")
"""Magic, version, the caller's rank, its random bytes, its proof."""
_STRANGER_S = 5.0
"""How long a caller may take to send its hello. Other callers are served meanwhile."""


class Book(Protocol):
    """A store in which ranks publish their addresses."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes:
        """Return the value of a key; wait until the key exists."""


class FolderBook:
    """A store in a folder that all ranks can access."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    def set(self, key: str, value: str) -> None:
        write_atomic(self._folder / key, value)

    def get(self, key: str) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return (self._folder / key).read_bytes()
            except FileNotFoundError:
                if time.monotonic() > deadline_s:
                    raise CollectiveError(f"timed out: no {key} in {self._folder}", "timed_out") from None
                time.sleep(0.002)


@dataclass(frozen=True)
class Peer:
    """A rank's entry in the store."""

    rank: int
    host: str
    port: int
    node: str
    """Ranks of one node share memory."""


class Place:
    """A rank's listening socket, and the secret with which it authenticates."""

    def __init__(self, rank: int, size: int, name: str, secret: bytes, host: str, node: str) -> None:
        self.rank, self.size, self._name, self._secret = rank, size, name, secret
        self.listener = socket.create_server((host, 0), family=_family(host), backlog=max(128, size))
        _widen_buffers(self.listener)
        self.listener.setblocking(False)
        self.peer = Peer(rank, host, self.listener.getsockname()[1], node)
        self.refused: list[str] = []
        """Callers that failed to authenticate."""

    def proof(self, caller: int, called: int, nonces: bytes, way: bytes) -> bytes:
        text = f"{self._name} {caller} {called}".encode() + nonces + way
        return hashlib.blake2s(text, key=self._secret[:32], digest_size=_PROOF_BYTES).digest()

    def connection(self, sock: socket.socket, peer: int, nonces: bytes, called: bool) -> Connection:
        out, back = keys_of(self._secret, self._name.encode() + nonces)
        checks = not _stays_here(sock)
        ways = (FrameCodec(out, checks), FrameCodec(back, checks))
        return Connection(sock, peer, *(reversed(ways) if called else ways))

    def close(self) -> None:
        self.listener.close()


def meet(place: Place, book: Book, timeout_s: float) -> tuple[list[Peer], dict[int, Connection]]:
    """Return all ranks' entries, in rank order, and this rank's connections.

    Raises:  CollectiveError if a rank does not arrive, or cannot be reached, within `timeout_s`.
    """
    deadline_s = time.monotonic() + timeout_s
    book.set(str(place.rank), json.dumps(vars(place.peer)))
    peers = [Peer(**json.loads(book.get(str(rank)))) for rank in range(place.size)]
    connections = {peer.rank: call(place, peer, deadline_s) for peer in peers[: place.rank]}
    connections |= answer(place, set(range(place.rank + 1, place.size)), deadline_s)
    return peers, connections


def call(place: Place, peer: Peer, deadline_s: float, alarms: Sequence[Connection] = ()) -> Connection:
    """Connect to a peer and authenticate. Raises CollectiveError; Alarm if an alarm becomes readable or closes."""
    sock = socket.socket(_family(peer.host))
    try:
        _widen_buffers(sock)
        sock.setblocking(False)
        if (failure := sock.connect_ex((peer.host, peer.port))) not in (0, errno.EINPROGRESS):
            raise OSError(failure, os.strerror(failure))
        _wait(sock, select.POLLOUT, deadline_s, alarms)
        if failure := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, os.strerror(failure))
        nonces = _read(sock, _NONCE_BYTES, deadline_s, alarms) + secrets.token_bytes(_NONCE_BYTES)
        own = place.proof(place.rank, peer.rank, nonces, b">")
        sock.sendall(_HELLO.pack(MAGIC, VERSION, place.rank, nonces[_NONCE_BYTES:], own))
        theirs = _read(sock, _PROOF_BYTES, deadline_s, alarms)
    except Alarm:
        sock.close()
        raise
    except (OSError, EOFError) as error:
        sock.close()
        raise CollectiveError(
            f"rank {peer.rank} of the group at {peer.host}:{peer.port} did not answer: {error}",
            "timed_out" if isinstance(error, TimeoutError) else "refused", peer.rank,
        ) from error  # fmt: skip
    if not hmac.compare_digest(theirs, place.proof(place.rank, peer.rank, nonces, b"<")):
        sock.close()
        raise CollectiveError(f"{peer.host}:{peer.port} is not rank {peer.rank} of this group", "refused", peer.rank)
    return place.connection(sock, peer.rank, nonces, called=False)


def answer(
    place: Place, expected: set[int], deadline_s: float, alarms: Sequence[EventSource] = ()
) -> dict[int, Connection]:
    """Wait until all expected ranks have called and authenticated; refuse all other callers.

    Raises:  TimedOut; Alarm if an alarm becomes readable or closes.
    """
    connected: dict[int, Connection] = {}
    waiting: dict[int, _Caller] = {}
    poll = Poll(alarms)
    poll.register(place.listener, select.POLLIN)
    try:
        while set(connected) != expected:
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise TimedOut(now_s - deadline_s, sorted(expected - set(connected)))
            for descriptor in poll.wait(min(1.0, deadline_s - now_s)):
                if descriptor == place.listener.fileno():
                    caller = _Caller(place)
                    waiting[caller.socket.fileno()] = caller
                    poll.register(caller.socket, select.POLLIN)
                elif waiting[descriptor].listen(expected - set(connected)):
                    poll.unregister(descriptor)
                    caller = waiting.pop(descriptor)
                    if caller.rank is not None:
                        connected[caller.rank] = place.connection(
                            caller.socket, caller.rank, caller.nonces, called=True
                        )
            for descriptor in [silent for silent, caller in waiting.items() if now_s > caller.until_s]:
                poll.unregister(descriptor)
                waiting.pop(descriptor).refuse("it sent nothing")
    except BaseException:
        for connection in connected.values():
            connection.close()
        raise
    finally:
        for caller in waiting.values():
            caller.socket.close()
    return connected


class _Caller:
    """A caller that has connected and not authenticated yet."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.socket, self._address = place.listener.accept()
        self.socket.setblocking(False)
        self.until_s = time.monotonic() + _STRANGER_S
        self.nonces = secrets.token_bytes(_NONCE_BYTES)
        self._said = b""
        self.rank: int | None = None
        with suppress(OSError):  # the caller has already left; `listen` detects that
            self.socket.send(self.nonces)

    def listen(self, expected: set[int]) -> bool:
        """Read more of the hello. Return True if this caller is finished: `rank` is set if it was accepted."""
        try:
            more = self.socket.recv(_HELLO.size - len(self._said))
        except OSError as error:
            return self.refuse(str(error))
        self._said += more
        if not more:
            return self.refuse("it hung up")
        if len(self._said) < _HELLO.size:
            return False
        magic, version, rank, nonce, proof = _HELLO.unpack(self._said)
        if (magic, version) != (MAGIC, VERSION):
            return self.refuse(f"it speaks {magic:04x}, version {version}; this is {MAGIC:04x}, version {VERSION}")
        self.nonces += nonce
        if not hmac.compare_digest(proof, self._place.proof(rank, self._place.rank, self.nonces, b">")):
            return self.refuse("it does not know the group's secret")
        if rank not in expected:
            return self.refuse(f"rank {rank} is not expected")
        try:
            self.socket.send(self._place.proof(rank, self._place.rank, self.nonces, b"<"))
        except OSError as error:
            return self.refuse(str(error))
        self.rank = rank
        return True

    def refuse(self, why: str) -> bool:
        self.socket.close()
        self._place.refused.append(f"{self._address[0]}:{self._address[1]}: {why}")
        return True


def own_host(towards: str) -> str:
    """Return this machine's address on the route to `towards`."""
    address = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
        probe.connect(address[4])
        return str(probe.getsockname()[0])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _widen_buffers(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def _stays_here(sock: socket.socket) -> bool:
    """True if both ends are on this machine, so that the kernel copies the bytes and nothing can damage them."""
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # the other end is gone; the next use of the socket reports that
        return True


def _wait(sock: socket.socket, event: int, deadline_s: float, alarms: Sequence[Connection]) -> None:
    """Return once `event` is true of the socket. Raises TimeoutError, Alarm."""
    poll = Poll(alarms)
    poll.register(sock, event)
    if not poll.wait(max(0.1, deadline_s - time.monotonic())):
        raise TimeoutError("timed out")


def _read(sock: socket.socket, num_bytes: int, deadline_s: float, alarms: Sequence[Connection]) -> bytes:
    data = b""
    while len(data) < num_bytes:
        _wait(sock, select.POLLIN, deadline_s, alarms)
        more = sock.recv(num_bytes - len(data))
        if not more:
            raise EOFError("it hung up")
        data += more
    return data

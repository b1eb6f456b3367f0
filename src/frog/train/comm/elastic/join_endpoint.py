"""The join endpoint of a group: where a joining rank sends its request, and how the members admit it.

The first member listens. A joining rank that knows the group's secret sends it a request with its own address, then
waits until the members admit it, between two of their collectives:

    joining -> first member   its request
    first   -> joining        a welcome: its identity, and the members with their addresses
    members -> joining        each member connects to it
    all                       agree on the new membership (`survivors.py`), which includes the joining rank

If the first member is lost meanwhile, or a connection fails, the others are unaffected, and the joining rank tries
again.

Comm:    a broadcast of the request and a barrier among the members; then the same as after a loss.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.core.schema import Host, Port
from frog.train.comm.collectives.connection import Connection, can_be_read, complete
from frog.train.comm.collectives.errors import CollectiveError, Refused
from frog.train.comm.collectives.frames import CONTROL
from frog.train.comm.collectives.rendezvous import Peer, Place, answer, call

NOTE_BYTES = 512
_WELCOME_BYTES = 32768
_NO_IDENTITY = MOST_ELASTIC_RANKS
"""The identity of every process that has none yet."""
_SAYS_IT_S = 5.0
_LISTENS_S = 3600.0


class _StopEvent:
    """Wakes the listening thread, which waits for sockets, and ends it."""

    peer = -1

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()

    def set(self) -> None:
        self._other.close()

    @property
    def is_set(self) -> bool:
        return can_be_read(self.socket)


@dataclass(frozen=True)
class Welcome:
    """The state of the group that a joining rank needs."""

    identity: int
    epoch: int
    completed: int
    members: tuple[int, ...]
    peers: Mapping[int, Peer]
    """Addresses of all past and present members, and of the joining rank."""
    costs: str


@dataclass(frozen=True)
class JoinRequest:
    """A process that waits to be admitted."""

    note: bytes
    _connection: Connection

    def admit(self, welcome: Welcome) -> None:
        """Admit a joining process. If it has died meanwhile, the members find out when they connect to it."""
        data = msgspec.json.encode(welcome).ljust(_WELCOME_BYTES)
        try:
            self._connection.send(CONTROL, 1, memoryview(data))
            complete([self._connection], _SAYS_IT_S)
        except CollectiveError:
            pass
        finally:
            self._connection.close()

    def decline(self) -> None:
        """Decline for now; the process may ask again."""
        self._connection.close()


class JoinEndpoint:
    """A listening thread that accepts join requests until it is closed."""

    def __init__(self, identity: int, secret: bytes, host: str, refused: Callable[[str], None]) -> None:
        """refused: called on that thread, with a line for each caller that failed to authenticate."""
        self._place = Place(identity, MOST_ELASTIC_RANKS, "door", secret, host, "")
        self.peer = self._place.peer
        self._waiting: deque[JoinRequest] = deque()
        self._refused = refused
        self._stop = _StopEvent()
        self._thread = threading.Thread(target=self._listen, name="frog join endpoint", daemon=True)
        self._thread.start()

    def __bool__(self) -> bool:
        """True if a process waits to be admitted."""
        return bool(self._waiting)

    def next(self) -> JoinRequest:
        """Return the oldest waiting request."""
        return self._waiting.popleft()

    def close(self) -> None:
        """Stop listening, and decline all waiting requests."""
        self._stop.set()
        self._thread.join()
        self._stop.socket.close()
        self._place.close()
        for request in self._waiting:
            request.decline()

    def _listen(self) -> None:
        while not self._stop.is_set:
            with suppress(CollectiveError, OSError):
                connections = answer(self._place, {_NO_IDENTITY}, time.monotonic() + _LISTENS_S, [self._stop])
                self._receive(connections[_NO_IDENTITY])
            for line in self._place.refused:
                with suppress(OSError, ValueError):  # the log is full or closed
                    self._refused(line)
            self._place.refused.clear()

    def _receive(self, connection: Connection) -> None:
        note = bytearray(NOTE_BYTES)
        connection.receive(CONTROL, 0, memoryview(note))
        try:
            complete([connection], _SAYS_IT_S)
            read_note(note, 0)
        except CollectiveError:
            connection.close()
            raise
        self._waiting.append(JoinRequest(bytes(note), connection))


def write_note(peer: Peer) -> bytes:
    """Encode a join request: the address of the joining process. Raises ValueError if its names are too long."""
    note = msgspec.json.encode([peer.host, peer.port, peer.node])
    if len(note) > NOTE_BYTES:
        raise ValueError(f"the join request has {len(note)} bytes; the limit is {NOTE_BYTES}")
    return note.ljust(NOTE_BYTES)


def read_note(note: bytes | bytearray, identity: int) -> Peer:
    """Decode a join request into a peer with this identity. Raises Refused if it is invalid."""
    try:
        host, port, node = msgspec.json.decode(bytes(note), type=tuple[Host, Port, str])
    except msgspec.MsgspecError as error:
        raise Refused(f"invalid join request: {error}") from error
    return Peer(identity, host, port, node)


def request_join(
    endpoint: Peer, secret: bytes, host: str, node: str, timeout_s: float
) -> tuple[Welcome, dict[int, Connection]]:
    """Ask the group to admit this process and wait. Return the welcome, and a control connection to each member.

    Raises:  CollectiveError if no process answers or the members could not admit this one; the endpoint may have moved.
    """
    place = Place(_NO_IDENTITY, MOST_ELASTIC_RANKS, "survivors", secret, host, node)
    try:
        welcome = _apply(endpoint, secret, place, timeout_s)
        place.rank = welcome.identity
        return welcome, answer(place, set(welcome.members), time.monotonic() + _SAYS_IT_S)
    finally:
        place.close()


def _apply(endpoint: Peer, secret: bytes, place: Place, timeout_s: float) -> Welcome:
    outside = Place(_NO_IDENTITY, MOST_ELASTIC_RANKS, "door", secret, place.peer.host, "")
    try:
        connection = call(outside, endpoint, time.monotonic() + _SAYS_IT_S)
    finally:
        outside.close()
    data = bytearray(_WELCOME_BYTES)
    connection.send(CONTROL, 0, memoryview(write_note(place.peer)))
    connection.receive(CONTROL, 1, memoryview(data))
    try:
        complete([connection], timeout_s)
        return msgspec.json.decode(bytes(data), type=Welcome)
    except msgspec.MsgspecError as error:
        raise Refused(f"invalid welcome: {error}") from error
    finally:
        connection.close()

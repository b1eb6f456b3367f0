"""The door of a group: where somebody who would come in is heard, and how it comes in.

The first member listens. Who would come in and knows the group's secret leaves a note there: where it can be called.
It then waits until the members let it in, between two of their collectives:

    newcomer -> first member   its note
    first    -> newcomer       a welcome: its number, who the members are, where they stand
    members  -> newcomer       each calls it, for a line between the two
    all                        agree on who is there now (`survivors.py`), the newcomer among them

If the first member is lost meanwhile, or a line cannot be made, nothing has happened to the others, and the newcomer
tries again.

Comm:    a broadcast of the note and a barrier among the members; then as after a loss.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from frog.comm.collectives.connection import Connection, complete
from frog.comm.collectives.errors import CollectiveError, Refused
from frog.comm.collectives.frames import CONTROL
from frog.comm.collectives.rendezvous import Peer, Place, answer, call
from frog.config.run import MOST_ELASTIC_RANKS
from frog.core.schema import Host, Port

NOTE_BYTES = 512
_WELCOME_BYTES = 32768
_NOBODY = MOST_ELASTIC_RANKS
"""The number of all who have none yet."""
_SAYS_IT_S = 5.0
_LISTENS_S = 3600.0


class _Bell:
    """Wakes the thread that listens."""

    peer = -1

    def __init__(self) -> None:
        self.socket, self._other = socket.socketpair()

    def ring(self) -> None:
        self._other.close()

    @property
    def has_rung(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])


@dataclass(frozen=True)
class Welcome:
    """What one who comes in must know."""

    identity: int
    epoch: int
    completed: int
    members: tuple[int, ...]
    peers: Mapping[int, Peer]
    """Of all who ever were members, and the newcomer."""
    costs: str


@dataclass(frozen=True)
class Applicant:
    """One who waits outside."""

    note: bytes
    _connection: Connection

    def welcome(self, welcome: Welcome) -> None:
        """Send it in. That it may be gone is found out by those who call it."""
        data = msgspec.json.encode(welcome).ljust(_WELCOME_BYTES)
        try:
            self._connection.send(CONTROL, 1, memoryview(data))
            complete([self._connection], _SAYS_IT_S)
        except CollectiveError:
            pass
        finally:
            self._connection.close()

    def send_away(self) -> None:
        """Not now: it may knock again."""
        self._connection.close()


class Door:
    """Open until it is closed, with a thread that listens."""

    def __init__(self, identity: int, secret: bytes, host: str, refused: Callable[[str], None]) -> None:
        """refused: called, on that thread, with a line for each caller who could not prove that it belongs here."""
        self._place = Place(identity, MOST_ELASTIC_RANKS, "door", secret, host, "")
        self.peer = self._place.peer
        self._waiting: deque[Applicant] = deque()
        self._refused = refused
        self._bell = _Bell()
        self._thread = threading.Thread(target=self._listen, name="frog door", daemon=True)
        self._thread.start()

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def next(self) -> Applicant:
        """Who has waited longest."""
        return self._waiting.popleft()

    def close(self) -> None:
        """Send all who wait away."""
        self._bell.ring()
        self._thread.join()
        self._bell.socket.close()
        self._place.close()
        for applicant in self._waiting:
            applicant.send_away()

    def _listen(self) -> None:
        while not self._bell.has_rung:
            with suppress(CollectiveError, OSError):
                found = answer(self._place, {_NOBODY}, time.monotonic() + _LISTENS_S, [self._bell])
                self._hear(found[_NOBODY])
            for line in self._place.refused:
                with suppress(OSError, ValueError):  # where it is written is full, or closed by now
                    self._refused(line)
            self._place.refused.clear()

    def _hear(self, connection: Connection) -> None:
        note = bytearray(NOTE_BYTES)
        connection.receive(CONTROL, 0, memoryview(note))
        try:
            complete([connection], _SAYS_IT_S)
            read_note(note, 0)
        except CollectiveError:
            connection.close()
            raise
        self._waiting.append(Applicant(bytes(note), connection))


def write_note(peer: Peer) -> bytes:
    """What one who would come in leaves at the door. Raises ValueError if its names are too long."""
    note = msgspec.json.encode([peer.host, peer.port, peer.node])
    if len(note) > NOTE_BYTES:
        raise ValueError(f"a note of {len(note)} bytes; at most {NOTE_BYTES}")
    return note.ljust(NOTE_BYTES)


def read_note(note: bytes | bytearray, identity: int) -> Peer:
    """Who has left it, under a number. Raises Refused if it says nothing."""
    try:
        host, port, node = msgspec.json.decode(bytes(note), type=tuple[Host, Port, str])
    except msgspec.MsgspecError as error:
        raise Refused(f"a note at the door that cannot be read: {error}") from error
    return Peer(identity, host, port, node)


def knock(door: Peer, secret: bytes, host: str, node: str, timeout_s: float) -> tuple[Welcome, dict[int, Connection]]:
    """Ask to be let in, and wait for that. The welcome, and a line to each member.

    Raises:  CollectiveError if nobody answers, or it came to nothing: the door may be another's by now.
    """
    place = Place(_NOBODY, MOST_ELASTIC_RANKS, "survivors", secret, host, node)
    try:
        welcome = _apply(door, secret, place, timeout_s)
        place.rank = welcome.identity
        return welcome, answer(place, set(welcome.members), time.monotonic() + _SAYS_IT_S)
    finally:
        place.close()


def _apply(door: Peer, secret: bytes, place: Place, timeout_s: float) -> Welcome:
    outside = Place(_NOBODY, MOST_ELASTIC_RANKS, "door", secret, place.peer.host, "")
    try:
        connection = call(outside, door, time.monotonic() + _SAYS_IT_S)
    finally:
        outside.close()
    data = bytearray(_WELCOME_BYTES)
    connection.send(CONTROL, 0, memoryview(write_note(place.peer)))
    connection.receive(CONTROL, 1, memoryview(data))
    try:
        complete([connection], timeout_s)
        return msgspec.json.decode(bytes(data), type=Welcome)
    except msgspec.MsgspecError as error:
        raise Refused(f"a welcome that cannot be read: {error}") from error
    finally:
        connection.close()

"""Somebody comes into a group while it works; members and newcomers are lost on the way."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mortal import Killed, Mortal, die, limits

from frog.comm.collectives.connection import complete
from frog.comm.collectives.errors import CollectiveError, Refused
from frog.comm.collectives.frames import CONTROL
from frog.comm.collectives.rendezvous import FolderBook, Peer, Place, answer, call
from frog.comm.elastic.agreement import WorldChanged
from frog.comm.elastic.door import NOTE_BYTES, Door, read_note, write_note
from frog.comm.elastic.entrance import join_survivors, meet_survivors
from frog.comm.elastic.survivors import Survivors
from frog.config.run import MOST_ELASTIC_RANKS
from frog.runs.observer import observing

SECRET = b"a secret of this run"
ROUNDS = 40


@pytest.fixture(autouse=True)
def _mortal() -> Iterator[None]:
    with observing(Mortal()):
        yield


def test_a_caller_who_is_gone_once_it_was_let_in_is_a_closed_connection() -> None:
    """It is found where the connection is used, and takes nobody along who listens."""
    place = Place(0, 2, "door", SECRET, "127.0.0.1", "")
    caller = socket.create_connection(place.listener.getsockname())
    select.select([place.listener], [], [])
    accepted, _ = place.listener.accept()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()
    select.select([accepted], [], [])
    connection = place.connection(accepted, 1, b"", called=True)
    connection.receive(CONTROL, 0, memoryview(bytearray(1)))
    with pytest.raises(CollectiveError):
        complete([connection], 10)
    connection.close()
    place.close()


def reset(port: int) -> None:
    """Connect, and reset the connection."""
    caller = socket.create_connection(("127.0.0.1", port))
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    caller.close()


def test_a_stranger_who_is_gone_before_anybody_looks_is_turned_away() -> None:
    place, caller = (Place(rank, 2, "door", SECRET, "127.0.0.1", "") for rank in (0, 1))
    reset(place.peer.port)
    calling = threading.Thread(target=lambda: call(caller, place.peer, time.monotonic() + 20).close())
    calling.start()
    found = answer(place, {1}, time.monotonic() + 20)
    calling.join(20)
    assert set(found) == {1}
    assert len(place.refused) == 1
    found[1].close()
    place.close()
    caller.close()


def test_a_door_outlives_a_log_that_takes_no_more_lines() -> None:
    told = threading.Event()

    def refuse(line: str) -> None:
        told.set()
        raise ValueError("I/O operation on closed file")

    door = Door(0, SECRET, "127.0.0.1", refuse)
    socket.create_connection(("127.0.0.1", door.peer.port)).close()
    outside = Place(MOST_ELASTIC_RANKS, MOST_ELASTIC_RANKS, "door", SECRET, "127.0.0.1", "")
    call(outside, door.peer, time.monotonic() + 20).close()  # nothing that it says counts
    assert told.wait(20)
    connection = call(outside, door.peer, time.monotonic() + 20)
    connection.send(CONTROL, 0, memoryview(write_note(outside.peer)))
    complete([connection], 20)
    until_s = time.monotonic() + 20
    while not door:
        assert time.monotonic() < until_s, "nobody listens"
        time.sleep(0.01)
    for end in (connection, outside, door):
        end.close()


@pytest.mark.parametrize("note", [b'["127.0.0.1", 70000, ""]', b'["a\\u0000b", 9, ""]', '["ä", 9, ""]'.encode()])
def test_a_note_that_leads_nowhere_is_refused(note: bytes) -> None:
    with pytest.raises(Refused):
        read_note(note.ljust(NOTE_BYTES), 1)


def test_a_group_is_full_once_its_last_number_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = meet_survivors(FolderBook(tmp_path, 20), 0, 1, SECRET)
    assert not world.is_full
    monkeypatch.setattr("frog.comm.elastic.survivors.MOST_ELASTIC_RANKS", 1)
    assert world.is_full
    world.close()


def gift(identity: int) -> np.ndarray[Any, Any]:
    return np.full(1000, float(10**identity))


class Play:
    """Some members, and newcomers who come once the members have taken a round."""

    def __init__(self, folder: Path, size: int, **options: Any) -> None:
        self.folder, self.size, self.options = folder, size, options
        self.where: Peer | None = None
        self.is_open = threading.Event()
        self.seen: dict[str, Any] = {}
        self.wanted = threading.Event()
        """Set when the members need not wait for anybody any more."""
        self.num_wanted = 1

    def member(self, name: str, world: Survivors, deadly: int | None = None) -> None:
        """Sum until all has happened that is to happen; the first member has a door."""
        limits.left = deadly
        door: Door | None = None
        rounds = 0
        try:
            while True:
                if world.rank == 0 and door is None:
                    door = Door(world.identity, SECRET, "127.0.0.1", lambda line: None)
                    self.where = door.peer
                    self.is_open.set()
                try:
                    signs = np.array([bool(door), self.wanted.is_set()], np.int64) * (world.rank == 0)
                    world.all_reduce(signs)
                    x, members = gift(world.identity), world.members
                    world.all_reduce(x)
                    assert (x == sum(10.0**one for one in members)).all()
                    if signs[0]:
                        world.admit(door.next() if door is not None else None)
                    if signs[1] and rounds > 3:
                        break
                    rounds += 1
                except WorldChanged:
                    rounds = 0
            self.seen[name] = world.members
        except Killed:
            die(world)
        except BaseException as error:
            self.seen[name] = error
            raise
        finally:
            limits.left = None
            if door is not None:
                door.close()
            die(world)

    def begin(self, rank: int, deadly: int | None = None) -> None:
        world = meet_survivors(FolderBook(self.folder, 20), rank, self.size, SECRET, node="one", timeout_s=20)
        self.member(str(rank), world, deadly)

    def come(self, name: str, deadly: int | None = None) -> None:
        """Knock until let in."""
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s:
            assert self.is_open.wait(20)
            assert self.where is not None
            limits.left = deadly
            try:
                world = join_survivors(self.where, SECRET, node="one", timeout_s=20)
            except Killed:
                break
            except CollectiveError:
                time.sleep(0.01)  # the next first member opens its door
                continue
            self.num_wanted -= 1
            if not self.num_wanted:
                self.wanted.set()
            self.member(name, world, deadly)
            return
        self.wanted.set()

    def play(self, deaths: dict[str, int], newcomers: int = 1) -> dict[str, Any]:
        """What each who lived saw at its end."""
        acts = [
            threading.Thread(target=self.begin, args=(r, deaths.get(str(r))), daemon=True) for r in range(self.size)
        ]
        names = [f"new {n}" for n in range(newcomers)]
        acts += [threading.Thread(target=self.come, args=(name, deaths.get(name)), daemon=True) for name in names]
        for act in acts:
            act.start()
        for act in acts:
            act.join(60)
            assert not act.is_alive(), "a rank hangs"
        return self.seen


def test_one_comes_in(tmp_path: Path) -> None:
    seen = Play(tmp_path, 2).play({})
    assert set(seen) == {"0", "1", "new 0"}
    assert set(seen.values()) == {(0, 1, 2)}


def test_one_alone_lets_another_in(tmp_path: Path) -> None:
    assert set(Play(tmp_path, 1).play({}).values()) == {(0, 1)}


def agree(seen: dict[str, Any]) -> tuple[int, ...]:
    """What all who lived saw."""
    assert len(set(seen.values())) == 1, seen
    members: tuple[int, ...] = next(iter(seen.values()))
    assert len(members) == len(seen), seen
    return members


def test_two_come_in_one_after_the_other(tmp_path: Path) -> None:
    play = Play(tmp_path, 2)
    play.num_wanted = 2
    assert agree(play.play({}, newcomers=2)) == (0, 1, 2, 3)


@pytest.mark.parametrize("after", range(0, 30, 2))
def test_the_newcomer_is_lost_on_the_way(after: int, tmp_path: Path) -> None:
    seen = Play(tmp_path, 3).play({"new 0": after})
    seen.pop("new 0", None)
    assert {"0", "1", "2"} == set(seen)
    assert len(set(seen.values())) == 1
    assert seen["0"][:3] == (0, 1, 2)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 11, 14, 17, 20, 23, 26, 29])
@pytest.mark.parametrize("who", ["0", "1"])
def test_a_member_is_lost_while_one_comes_in(who: str, after: int, tmp_path: Path) -> None:
    members = agree(Play(tmp_path, 3).play({who: after}))
    assert max(members) >= 3, "nobody came in"

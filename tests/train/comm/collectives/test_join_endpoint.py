"""A rank joins a working group; members and joining ranks are lost on the way."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import LIMIT_S, wait_until
from mortal import Killed, Mortal, die, limits

from frog.core.config.run_config import MOST_ELASTIC_RANKS
from frog.core.runs.observer import observing
from frog.train.comm.collectives.connection import complete
from frog.train.comm.collectives.errors import CollectiveError, Refused
from frog.train.comm.collectives.frames import CONTROL
from frog.train.comm.collectives.rendezvous import FolderBook, Peer, Place, answer, call
from frog.train.comm.elastic.agreement import WorldChanged
from frog.train.comm.elastic.entrance import join_survivors, meet_survivors
from frog.train.comm.elastic.join_endpoint import NOTE_BYTES, JoinEndpoint, read_note, write_note
from frog.train.comm.elastic.survivors import Survivors

SECRET = b"a secret of this run"


@pytest.fixture(autouse=True)
def _mortal() -> Iterator[None]:
    with observing(Mortal()):
        yield


def test_caller_that_leaves_after_accept_is_a_closed_connection() -> None:
    """The error appears where the connection is used; the listener survives."""
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


def test_caller_that_resets_before_accept_is_refused() -> None:
    place, caller = (Place(rank, 2, "door", SECRET, "127.0.0.1", "") for rank in (0, 1))
    reset(place.peer.port)
    calling = threading.Thread(target=lambda: call(caller, place.peer, time.monotonic() + 20).close())
    calling.start()
    found = answer(place, {1}, time.monotonic() + 20)
    calling.join(LIMIT_S)
    assert set(found) == {1}
    assert len(place.refused) == 1
    found[1].close()
    place.close()
    caller.close()


def test_join_endpoint_survives_a_log_that_takes_no_more_lines() -> None:
    reported = threading.Event()

    def refuse(line: str) -> None:
        reported.set()
        raise ValueError("I/O operation on closed file")

    endpoint = JoinEndpoint(0, SECRET, "127.0.0.1", refuse)
    socket.create_connection(("127.0.0.1", endpoint.peer.port)).close()
    outside = Place(MOST_ELASTIC_RANKS, MOST_ELASTIC_RANKS, "door", SECRET, "127.0.0.1", "")
    call(outside, endpoint.peer, time.monotonic() + 20).close()  # it sends no join request
    assert reported.wait(LIMIT_S)
    connection = call(outside, endpoint.peer, time.monotonic() + 20)
    connection.send(CONTROL, 0, memoryview(write_note(outside.peer)))
    complete([connection], 20)
    wait_until(lambda: bool(endpoint), "a join request")
    for end in (connection, outside, endpoint):
        end.close()


@pytest.mark.parametrize("note", [b'["127.0.0.1", 70000, ""]', b'["a\\u0000b", 9, ""]', '["ä", 9, ""]'.encode()])
def test_join_request_with_an_invalid_address_is_refused(note: bytes) -> None:
    with pytest.raises(Refused):
        read_note(note.ljust(NOTE_BYTES), 1)


def test_group_is_full_once_its_last_identity_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = meet_survivors(FolderBook(tmp_path, 20), 0, 1, SECRET)
    assert not world.is_full
    monkeypatch.setattr("frog.train.comm.elastic.survivors.MOST_ELASTIC_RANKS", 1)
    assert world.is_full
    world.close()


def gift(identity: int) -> np.ndarray[Any, Any]:
    return np.full(1000, float(10**identity))


class Play:
    """A few members, and ranks that join once the members have completed a round."""

    def __init__(self, folder: Path, size: int, **options: Any) -> None:
        self.folder, self.size, self.options = folder, size, options
        self.where: Peer | None = None
        self.is_open = threading.Event()
        self.seen: dict[str, Any] = {}
        self.wanted = threading.Event()
        """Set when the members no longer wait for joining ranks."""
        self.num_wanted = 1

    def member(self, name: str, world: Survivors, deadly: int | None = None) -> None:
        """Sum in rounds until all planned changes have happened; the first member opens a join endpoint."""
        limits.left = deadly
        endpoint: JoinEndpoint | None = None
        rounds = 0
        try:
            while True:
                if world.rank == 0 and endpoint is None:
                    endpoint = JoinEndpoint(world.identity, SECRET, "127.0.0.1", lambda line: None)
                    self.where = endpoint.peer
                    self.is_open.set()
                try:
                    signs = np.array([bool(endpoint), self.wanted.is_set()], np.int64) * (world.rank == 0)
                    world.all_reduce(signs)
                    x, members = gift(world.identity), world.members
                    world.all_reduce(x)
                    assert (x == sum(10.0**one for one in members)).all()
                    if signs[0]:
                        world.admit(endpoint.next() if endpoint is not None else None)
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
            if endpoint is not None:
                endpoint.close()
            die(world)

    def begin(self, rank: int, deadly: int | None = None) -> None:
        world = meet_survivors(FolderBook(self.folder, 20), rank, self.size, SECRET, node="one", timeout_s=20)
        self.member(str(rank), world, deadly)

    def come(self, name: str, deadly: int | None = None) -> None:
        """Ask to join until admitted."""
        assert self.is_open.wait(LIMIT_S)

        def join() -> Survivors | None:
            assert self.where is not None
            limits.left = deadly
            with suppress(CollectiveError):  # until the next first member opens its endpoint
                return join_survivors(self.where, SECRET, node="one", timeout_s=20)
            return None

        try:
            world = wait_until(join, "the admission")
        except Killed:
            self.wanted.set()
            return
        assert world is not None
        self.num_wanted -= 1
        if not self.num_wanted:
            self.wanted.set()
        self.member(name, world, deadly)

    def play(self, deaths: dict[str, int], num_joining: int = 1) -> dict[str, Any]:
        """Return each survivor's members at its end."""
        acts = [
            threading.Thread(target=self.begin, args=(r, deaths.get(str(r))), daemon=True) for r in range(self.size)
        ]
        names = [f"new {n}" for n in range(num_joining)]
        acts += [threading.Thread(target=self.come, args=(name, deaths.get(name)), daemon=True) for name in names]
        for act in acts:
            act.start()
        for act in acts:
            act.join(LIMIT_S)
            assert not act.is_alive(), "a rank hangs"
        return self.seen


def test_rank_joins_a_working_group(tmp_path: Path) -> None:
    seen = Play(tmp_path, 2).play({})
    assert set(seen) == {"0", "1", "new 0"}
    assert set(seen.values()) == {(0, 1, 2)}


def test_single_rank_admits_another(tmp_path: Path) -> None:
    assert set(Play(tmp_path, 1).play({}).values()) == {(0, 1)}


def agree(seen: dict[str, Any]) -> tuple[int, ...]:
    """Return the members that all survivors saw."""
    assert len(set(seen.values())) == 1, seen
    members: tuple[int, ...] = next(iter(seen.values()))
    assert len(members) == len(seen), seen
    return members


def test_two_ranks_join_one_after_the_other(tmp_path: Path) -> None:
    play = Play(tmp_path, 2)
    play.num_wanted = 2
    assert agree(play.play({}, num_joining=2)) == (0, 1, 2, 3)


@pytest.mark.parametrize("after", range(0, 30, 2))
def test_group_survives_the_loss_of_a_joining_rank(after: int, tmp_path: Path) -> None:
    seen = Play(tmp_path, 3).play({"new 0": after})
    seen.pop("new 0", None)
    assert {"0", "1", "2"} == set(seen)
    assert len(set(seen.values())) == 1
    assert seen["0"][:3] == (0, 1, 2)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 11, 14, 17, 20, 23, 26, 29])
@pytest.mark.parametrize("who", ["0", "1"])
def test_rank_joins_although_a_member_is_lost_meanwhile(who: str, after: int, tmp_path: Path) -> None:
    members = agree(Play(tmp_path, 3).play({who: after}))
    assert max(members) >= 3, "no rank joined"

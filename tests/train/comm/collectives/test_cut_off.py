"""A rank is lost at any byte of every collective, over both transports: the others get the same report of the loss.

Other ranks see only the bytes that a rank sends and the numbers, of eight bytes each, that it writes into shared
memory. A rank that dies here has a limited number of them; the first call, without a loss, counts how many a complete
collective needs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import LIMIT_S
from mortal import Killed, die
from numpy.typing import NDArray
from ranks import DOUBLING, RING, be_all

from frog.train.comm.collectives.connection import Connection
from frog.train.comm.collectives.errors import PeerClosed
from frog.train.comm.collectives.exchange import bytes_of
from frog.train.comm.collectives.frames import MESSAGE, FrameCodec
from frog.train.comm.collectives.group import OPERATIONS
from frog.train.comm.collectives.messages import Messages
from frog.train.comm.collectives.rendezvous import FolderBook
from frog.train.comm.collectives.waiting import Waiter
from frog.train.comm.elastic.agreement import WorldChanged
from frog.train.comm.elastic.entrance import meet_survivors
from frog.train.comm.elastic.survivors import Survivors

ELEMENTS = 150_000
"""More than a slice of shared memory, and more than a piece of a ring."""
NUMBER_BYTES = 8
LITTLE_BYTES = 1 << 16
"""Most bytes in transit between the two ends of a connection, or half of that."""
LOST = 1
NEVER_S = 600.0
"""Longer than the hang detection: no rank may detect the loss by waiting for its deadline."""
Array = NDArray[np.float64]

seen = threading.local()
"""`bytes`: number of bytes sent or written by this thread's rank; `left`: bytes left to it; None: unlimited."""


def spend(most: int) -> int:
    """Return how many of `most` bytes this rank may still send or write."""
    left = getattr(seen, "left", None)
    can = most if left is None else min(most, left)
    seen.bytes = getattr(seen, "bytes", 0) + can
    seen.left = None if left is None else left - can
    return can


def send_some(connection: Connection) -> bool:
    head = connection.outgoing[0]
    parts = [memoryview(part) for part in head.parts]
    whole = sum(map(len, parts))
    left = getattr(seen, "left", None)
    if left is not None and left < whole:
        connection.socket.setblocking(True)
        connection.socket.sendall(b"".join(parts)[:left])
        raise Killed
    before = connection.sent_bytes
    moved = really_send_some(connection)
    spend(connection.sent_bytes - before)
    return moved


def say(waiter: Waiter, counter: int, value: int) -> None:
    if spend(NUMBER_BYTES) < NUMBER_BYTES:
        raise Killed
    really_say(waiter, counter, value)


really_send_some, really_say = Connection._send_some, Waiter.say


@pytest.fixture(autouse=True)
def _mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_send_some", send_some)
    monkeypatch.setattr(Waiter, "say", say)


def own(identity: int, slot: int = 0) -> Array:
    """Return a rank's data, optionally for one of several slots."""
    return np.arange(ELEMENTS) % 7 + 10.0**identity + 1000 * slot


class Case:
    """A collective: its call, the buffers that it changes, and the expected result in a world."""

    def __init__(
        self,
        call: Callable[[Survivors, list[Array]], None],
        buffers: Callable[[Survivors], list[Array]],
        result: Callable[[Survivors], list[Array]],
    ) -> None:
        self.call, self.buffers, self.result = call, buffers, result


def empty(world: Survivors, count: int | None = None) -> list[Array]:
    return [np.full(ELEMENTS, -1.0) for _ in range(world.size if count is None else count)]


def total(world: Survivors, slot: int = 0) -> Array:
    return np.sum([own(identity, slot) for identity in world.members], axis=0)


def each(world: Survivors) -> list[Array]:
    """Return this rank's data for each rank."""
    return [own(world.identity, slot) for slot in range(world.size)]


def rooted(world: Survivors, root: int) -> int:
    """Return the rank of that identity, or of another one if it is lost."""
    return world.members.index(root) if root in world.members else 0


def broadcast(root: int) -> Case:
    return Case(
        lambda world, x: world.broadcast(x[0], rooted(world, root)),
        lambda world: [own(world.identity)],
        lambda world: [own(world.members[rooted(world, root)])],
    )


def reduce(root: int) -> Case:
    def result(world: Survivors) -> list[Array]:
        return [total(world) if world.rank == rooted(world, root) else own(world.identity)]

    return Case(lambda world, x: world.reduce(x[0], rooted(world, root)), lambda world: [own(world.identity)], result)


def gather(root: int) -> Case:
    def gets(world: Survivors) -> bool:
        return world.rank == rooted(world, root)

    return Case(
        lambda world, x: world.gather(own(world.identity), x or None, rooted(world, root)),
        lambda world: empty(world) if gets(world) else [],
        lambda world: [own(identity) for identity in world.members] if gets(world) else [],
    )


def scatter(root: int) -> Case:
    def call(world: Survivors, x: list[Array]) -> None:
        gives = world.rank == rooted(world, root)
        world.scatter(x[0], each(world) if gives else None, rooted(world, root))

    return Case(
        call, lambda world: empty(world, 1), lambda world: [own(world.members[rooted(world, root)], world.rank)]
    )


CASES = {
    "all_reduce": Case(
        lambda world, x: world.all_reduce(x[0]), lambda world: [own(world.identity)], lambda world: [total(world)]
    ),
    "all_gather": Case(
        lambda world, x: world.all_gather(x, own(world.identity)),
        empty,
        lambda world: [own(identity) for identity in world.members],
    ),
    "reduce_scatter": Case(
        lambda world, x: world.reduce_scatter(x[0], each(world)),
        lambda world: empty(world, 1),
        lambda world: [total(world, world.rank)],
    ),
    "all_to_all": Case(
        lambda world, x: world.all_to_all(x, each(world), even=True),
        empty,
        lambda world: [own(identity, world.rank) for identity in world.members],
    ),
    "barrier": Case(lambda world, x: world.barrier(), lambda world: [], lambda world: []),
    "broadcast": broadcast(0),
    "broadcast of the lost": broadcast(LOST),
    "reduce": reduce(0),
    "reduce to the lost": reduce(LOST),
    "gather": gather(0),
    "gather to the lost": gather(LOST),
    "scatter": scatter(0),
    "scatter of the lost": scatter(LOST),
}
WAYS: dict[str, dict[str, Any]] = {
    "memory": {},
    "tcp": {"memory": False, "costs": RING},
    "tcp, small": {"memory": False, "costs": DOUBLING},
}
ALGORITHMS = [
    (name, way) for name in CASES for way in WAYS if name in ("all_reduce", "all_gather") or way != "tcp, small"
]
CUTS: dict[str, Callable[[int], int]] = {
    "nothing": lambda whole: 0,
    "a byte": lambda whole: 1,
    "in the header": lambda whole: min(31, whole - 1),
    "half": lambda whole: whole // 2,
    "all but a byte": lambda whole: whole - 1,
}


def told_of(call: Callable[[], None]) -> WorldChanged | None:
    """Return the membership change that the call reported, if any."""
    try:
        call()
    except WorldChanged as changed:
        return changed
    return None


def test_cases_cover_every_collective() -> None:
    assert {name.split()[0] for name in CASES} == {*OPERATIONS}


@pytest.mark.parametrize("cut", [pytest.param(cut, marks=[] if cut == "half" else pytest.mark.slow) for cut in CUTS])
@pytest.mark.parametrize(("name", "way"), ALGORITHMS)
def test_survivors_learn_of_a_loss_at_any_byte_and_continue(name: str, way: str, cut: str, tmp_path: Path) -> None:
    """The first call is complete; in the second a rank is lost: it succeeds on both others, or on neither."""
    case, ready, ends = CASES[name], threading.Barrier(3), threading.Barrier(2)
    completed: dict[int, bool] = {}

    def take(world: Survivors) -> None:
        x = case.buffers(world)
        expected = case.result(world)
        case.call(world, x)
        assert np.array_equal(x, expected), "a wrong result"

    def survive(world: Survivors) -> None:
        x = case.buffers(world)
        before, expected = [one.copy() for one in x], case.result(world)
        told = told_of(lambda: case.call(world, x))
        completed[world.identity] = told is None
        assert np.array_equal(x, expected if told is None else before), "a wrong result"
        told = told or told_of(world.barrier)
        assert told is not None
        assert told.lost == (LOST,)
        take(world)
        ends.wait(LIMIT_S)

    def be(rank: int) -> None:
        world = meet_survivors(FolderBook(tmp_path, 20), rank, 3, b"secret", node="one", timeout_s=NEVER_S, **WAYS[way])
        try:
            seen.bytes, seen.left = 0, None
            take(world)
            seen.left = CUTS[cut](seen.bytes) if rank == LOST else None
            ready.wait(LIMIT_S)
            if rank == LOST:
                with pytest.raises(Killed):
                    take(world)
            else:
                survive(world)
        finally:
            seen.left = None
            die(world)

    be_all(be, 3)
    assert completed in ({0: False, 2: False}, {0: True, 2: True}), "the survivors disagree on the outcome"


@pytest.fixture
def line() -> Iterator[tuple[Messages, socket.socket, FrameCodec]]:
    """Yield the messages of a rank, the other end of its connection to rank 1, and the codec of that end's frames."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE_BYTES)
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE_BYTES)
    messages = Messages({1: Connection(here, 1, FrameCodec(b"key", True), FrameCodec(b"key", True))}, timeout_s=NEVER_S)
    yield messages, there, FrameCodec(b"key", True)
    messages.close()


@pytest.mark.parametrize("cut", CUTS)
def test_receiver_of_a_message_learns_who_is_lost(cut: str, line: tuple[Messages, socket.socket, FrameCodec]) -> None:
    """Send and receive belong to a group that does not shrink: an interrupted one is an error that names the rank."""
    messages, there, sending = line
    payload, room = own(1).tobytes(), np.empty(ELEMENTS)
    frame = sending.header(MESSAGE, 0, payload, 5) + payload
    waiting = [messages.receive(1, tag, bytes_of(room)) for tag in (5, 6)]
    there.sendall(frame[: CUTS[cut](len(frame))])
    there.close()
    for transfer in (*waiting, messages.receive(1, 5, bytes_of(room)), messages.send(1, 5, bytes_of(room))):
        with pytest.raises(PeerClosed) as caught:
            transfer.wait()
        assert caught.value.peer == 1


@pytest.mark.parametrize("cut", CUTS)
def test_sender_of_a_message_learns_who_is_lost(cut: str, line: tuple[Messages, socket.socket, FrameCodec]) -> None:
    """The message is larger than the buffers between the two: a smaller one counts as sent, even if it is not read."""
    messages, there, _ = line
    x = own(0)
    transfer = messages.send(1, 5, bytes_of(x))
    left = CUTS[cut](x.nbytes)
    while left:
        left -= len(there.recv(min(left, 1 << 20)))
    there.close()
    if cut != "all but a byte":  # the system's buffers have accepted that much
        with pytest.raises(PeerClosed) as caught:
            transfer.wait()
        assert caught.value.peer == 1

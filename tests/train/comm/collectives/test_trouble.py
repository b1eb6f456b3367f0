"""Peers that leave, hang, disagree or do not belong: every remaining rank gets an error with its facts, in time."""

from __future__ import annotations

import contextlib
import json
import mmap
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import LIMIT_S, wait_until
from ranks import DOUBLING, RING, together

from frog.train.comm.collectives import messages
from frog.train.comm.collectives.connection import Connection
from frog.train.comm.collectives.cost import Costs
from frog.train.comm.collectives.errors import CollectiveError, Mismatch, PeerClosed, TimedOut
from frog.train.comm.collectives.exchange import bytes_of
from frog.train.comm.collectives.frames import MAGIC, VERSION, FrameCodec
from frog.train.comm.collectives.group import Group
from frog.train.comm.collectives.messages import Messages
from frog.train.comm.collectives.rendezvous import _HELLO, FolderBook, Place, meet
from frog.train.comm.collectives.waiting import Waiter
from frog.train.comm.collectives.worker import Worker


@pytest.mark.parametrize(("memory", "costs"), [(True, None), (False, RING), (False, DOUBLING)])
def test_collective_fails_if_a_peer_leaves(memory: bool, costs: Costs | None, tmp_path: Path) -> None:
    def act(group: Group) -> tuple[str | None, int | None]:
        group.barrier()
        if group.rank == 1:
            return None, None
        with pytest.raises(CollectiveError) as caught:
            group.all_reduce(np.ones(100_000, np.float32))
        return caught.value.cause, caught.value.peer

    found = together(tmp_path, 3, act, memory=memory, costs=costs)
    assert {cause for cause, _ in found if cause} == {"closed"}
    assert 1 in {found[0][1], found[2][1]}


@pytest.mark.parametrize("memory", [True, False])
def test_collective_times_out_if_a_peer_never_comes(memory: bool, tmp_path: Path) -> None:
    over = threading.Event()

    def act(group: Group) -> int | None:
        if group.rank == 1:
            over.wait(LIMIT_S)
            return None
        group.mesh.timeout_s = 1
        if group.segment is not None:
            group.segment._waiter._timeout_s = 1
        with pytest.raises(TimedOut, match="nothing from rank 1 of the group") as caught:
            group.all_reduce(np.ones(10, np.float32))
        over.set()
        return caught.value.peer

    assert together(tmp_path, 2, act, memory=memory)[0] == 1


def test_different_collectives_over_tcp_are_reported(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def act(group: Group) -> str:
        x = np.ones(10 * (1 + group.rank), np.float32)
        with pytest.raises(Mismatch) as caught:
            group.all_reduce(x)
        both.wait(10)
        return str(caught.value)

    found = together(tmp_path, 2, act, memory=False, costs=DOUBLING)
    assert "rank 1 of the group sent" in found[0]
    assert "80 bytes" in found[0]
    assert "40 bytes" in found[0]


EMPTY = np.ones(0, np.float32)


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.all_reduce(EMPTY),
        lambda group: group.all_gather([EMPTY, EMPTY], EMPTY),
        lambda group: group.reduce_scatter(EMPTY, [EMPTY, EMPTY]),
        lambda group: group.broadcast(EMPTY, 0),
        lambda group: group.reduce(EMPTY, 0),
    ],
    ids=["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"],
)
def test_call_of_one_rank_alone_is_reported_although_it_sent_nothing(
    call: Callable[[Group], None], tmp_path: Path
) -> None:
    """Calls are counted: an empty one too, or the next ones would be taken for each other."""
    both = threading.Barrier(2)

    def act(group: Group) -> None:
        call(group)
        _all_reduce(group, 3)
        if group.rank == 0:
            call(group)
        with pytest.raises(Mismatch):
            _all_reduce(group, 3)
        both.wait(10)

    together(tmp_path, 2, act, memory=False, costs=DOUBLING)


def _all_reduce(group: Group, count: int) -> None:
    group.all_reduce(np.ones(count, np.float32))


def _all_gather(group: Group, count: int) -> None:
    group.all_gather([np.ones(count, np.float32) for _ in range(group.size)], np.ones(count, np.float32))


def _reduce_scatter(group: Group, count: int) -> None:
    group.reduce_scatter(np.ones(count, np.float32), [np.ones(count, np.float32) for _ in range(group.size)])


def _all_to_all(group: Group, count: int) -> None:
    rows = [np.ones(count, np.float32) for _ in range(group.size)]
    group.all_to_all(rows, [row.copy() for row in rows], even=True)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((_all_reduce, 10), (_all_reduce, 20), "an all-reduce of 80 bytes; this rank is in an all-reduce of 40 bytes"),
        ((_all_reduce, 300_000), (_all_reduce, 900_000), "an all-reduce of 3600000 bytes"),
        ((_all_gather, 10), (_all_gather, 900_000), "an all-gather of 3600000 bytes"),
        ((_all_gather, 10), (_reduce_scatter, 10), "a reduce-scatter of 40 bytes; this rank is in an all-gather"),
        ((_all_to_all, 10), (_all_to_all, 11), "an all-to-all of 44 bytes"),
        (
            (_all_reduce, 10),
            (_all_reduce, 90_000),
            "an all-reduce of 360000 bytes; this rank is in an all-reduce of 40 bytes",
        ),
        ((_all_gather, 10), (_all_reduce, 20), "an all-reduce of 80 bytes; this rank is in an all-gather of 40 bytes"),
    ],
)
def test_different_collectives_in_memory_are_reported(first: Any, second: Any, said: str, tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def act(group: Group) -> str:
        group.barrier()
        call, count = (first, second)[group.rank]
        with pytest.raises(Mismatch) as caught:
            call(group, count)
        both.wait(10)
        assert caught.value.peer == 1 - group.rank
        return str(caught.value)

    assert said in together(tmp_path, 2, act, memory=True)[0]


def test_collective_does_not_wait_for_a_peer_that_arrived_and_left() -> None:
    """The peer may write its last data and leave just while another rank checks for it."""

    def look(rank: int) -> None:
        other.say(0, 1)
        raise PeerClosed(rank)

    memory = mmap.mmap(-1, 4096)
    other = Waiter(memory, 128, 1, 2, 20, lambda rank: None)
    Waiter(memory, 128, 0, 2, 20, look).until(0, 1)
    with pytest.raises(PeerClosed):
        Waiter(memory, 128, 0, 2, 20, look).until(0, 2)


def test_messages_are_matched_by_tag(tmp_path: Path) -> None:
    def act(group: Group) -> list[float]:
        peer = 1 - group.rank
        large, small = np.full(1 << 20, group.rank + 0.5), np.full(1, group.rank + 0.25)
        sent = [group.messages.send(peer, tag, bytes_of(x)) for tag, x in ((1, large), (2, small), (1, small))]
        got_small, got_large, second = np.empty(1), np.empty(1 << 20), np.empty(1)
        group.messages.receive(peer, 2, bytes_of(got_small)).wait()
        anybody = group.messages.receive(None, 1, bytes_of(got_large))
        anybody.wait()
        assert anybody.peer == peer
        group.messages.receive(peer, 1, bytes_of(second)).wait()
        for one in sent:
            one.wait()
        assert np.all(got_large == peer + 0.5)
        return [float(got_small[0]), float(second[0])]

    assert together(tmp_path, 2, act) == [[1.25, 1.25], [0.25, 0.25]]


def test_message_of_another_size_is_an_error(tmp_path: Path) -> None:
    def act(group: Group) -> str | None:
        if group.rank == 0:
            group.messages.send(1, 0, bytes_of(np.ones(3))).wait()
            group.barrier()
            return None
        with pytest.raises(Mismatch, match="a message of 24 bytes; expected 8"):
            group.messages.receive(0, 0, bytes_of(np.ones(1))).wait()
        group.barrier()
        return "told"

    assert together(tmp_path, 2, act) == [None, "told"]


def test_receive_fails_if_the_peer_left(tmp_path: Path) -> None:
    def act(group: Group) -> str | None:
        group.barrier()
        if group.rank == 1:
            return None
        with pytest.raises(CollectiveError) as caught:
            group.messages.receive(1, 0, bytes_of(np.ones(1))).wait()
        return caught.value.cause

    assert together(tmp_path, 2, act) == ["closed", None]


def test_strangers_are_refused_and_reported(tmp_path: Path) -> None:
    book = FolderBook(tmp_path, 10)
    places = [Place(rank, 2, "world", b"secret", "127.0.0.1", "one") for rank in (0, 1)]
    spy = Place(1, 2, "world", b"guess!", "127.0.0.1", "one")
    result: list[object] = []
    book.set("1", json.dumps(vars(places[1].peer)))
    host = threading.Thread(target=lambda: result.append(meet(places[0], book, 10)), daemon=True)
    host.start()
    address = (places[0].peer.host, places[0].peer.port)
    silent = socket.create_connection(address)
    with socket.create_connection(address) as browser:
        browser.sendall(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n" * 3)
        assert browser.recv(16)
        with contextlib.suppress(ConnectionResetError):  # or the end of the stream
            assert browser.recv(1) == b""
    with socket.create_connection(address) as guesser:
        nonces = guesser.recv(16) + bytes(16)
        guesser.sendall(_HELLO.pack(MAGIC, VERSION, 1, bytes(16), spy.proof(1, 0, nonces, b">")))
        assert guesser.recv(1) == b""
    _, connections = meet(places[1], book, 10)
    host.join(LIMIT_S)
    assert result
    assert set(connections) == {0}
    refused = places[0].refused
    assert any("it speaks 4745" in line for line in refused), refused
    assert any("does not know the group's secret" in line for line in refused), refused
    silent.close()
    for place in (*places, spy):
        place.close()
    for one in (*connections.values(), *result[0][1].values()):  # type: ignore[index]
        one.close()


def test_asynchronous_collectives_run_in_order_and_stop_after_an_error() -> None:
    worker, order = Worker("test"), []
    first = threading.Event()
    handles = [worker.start(lambda: order.append(0 if first.wait(10) else -1))]
    handles += [worker.start(lambda number=number: order.append(number)) for number in (1, 2)]  # type: ignore[misc]
    first.set()
    handles[-1].wait()
    worker.run(lambda: order.append(3))
    assert order == [0, 1, 2, 3]

    def fail() -> None:
        raise TimedOut(1.0, [1])

    with pytest.raises(ValueError, match="no such"):
        worker.run(lambda: (_ for _ in ()).throw(ValueError("no such")))
    worker.run(lambda: order.append(4))  # a request rejected before any byte was sent does no damage
    with pytest.raises(TimedOut):
        worker.start(fail).wait()
    with pytest.raises(TimedOut):
        worker.run(lambda: order.append(5))
    assert order[-1] == 4
    worker.close()


def test_callback_may_start_another_collective_and_wait_for_it() -> None:
    """PowerSGD does this with a future of torch, which cannot help to run it."""
    worker, done = Worker("test"), threading.Event()

    def ask(depth: int) -> None:
        if depth == 3:
            done.set()
            return
        ended = threading.Event()
        worker.start(lambda: None, ended.set)
        if ended.wait(5):
            ask(depth + 1)

    worker.start(lambda: None, lambda: ask(0))
    assert done.wait(10)
    worker.run(lambda: None)
    worker.close()


def test_callback_may_wait_for_the_next_collective() -> None:
    worker, done = Worker("test"), threading.Event()
    late = threading.Event()
    first = worker.start(lambda: late.wait(10), lambda: (second.wait(), done.set()))
    second = worker.start(lambda: None)
    late.set()
    first.wait()
    assert done.wait(10)
    worker.close()


class Clock:
    """A clock that moves only on request. Replaces the module `time`."""

    def __init__(self) -> None:
        self.now_s, self.num_looks = 0.0, 0

    def monotonic(self) -> float:
        self.num_looks += 1
        return self.now_s


def test_message_has_its_full_timeout_after_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, one = Clock(), bytearray(1)
    monkeypatch.setattr(messages, "time", clock)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ends = [socket.create_connection(listener.getsockname()), listener.accept()[0]]
    ours, theirs = (
        Messages(
            {1 - rank: Connection(end, 1 - rank, FrameCodec(b"key", False), FrameCodec(b"key", False))}, timeout_s=10
        )
        for rank, end in enumerate(ends)
    )
    with contextlib.closing(ours), contextlib.closing(theirs):
        theirs.send(0, 0, memoryview(b"a"))
        ours.receive(1, 0, memoryview(one)).wait()
        clock.now_s += 60
        looks = clock.num_looks
        waiting = ours.receive(1, 0, memoryview(one))
        wait_until(lambda: clock.num_looks > looks, "a check of the message")
        theirs.send(0, 0, memoryview(b"b"))
        waiting.wait()
    assert one == b"b"

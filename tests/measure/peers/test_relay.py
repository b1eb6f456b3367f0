"""The relay between peers, in this process: what passes, when, and what a fault does to it."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from frog.measure.peers.flow import BUFFER_BYTES, Flow
from frog.measure.peers.observed import Fault, Shape
from frog.measure.peers.relay import Relay

# ---- one direction, with a clock of its own --------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """Return the sender's socket, the flow's source, its sink, and the receiver's socket."""
    pairs = (*socket.socketpair(), *socket.socketpair())
    for end in pairs:
        end.setblocking(False)
    yield pairs
    for end in pairs:
        end.close()


Ends = tuple[socket.socket, socket.socket, socket.socket, socket.socket]


def arrivals(flow: Flow, receiver: socket.socket, step_s: float, until_s: float) -> list[tuple[float, bytes]]:
    """Write in steps of a clock; return when which bytes arrive."""
    found = []
    for number in range(round(until_s / step_s) + 1):
        now = number * step_s + 1e-9
        if flow.write(now):
            found.append((round(now, 6), receiver.recv(1 << 20)))
    return found


@pytest.mark.parametrize(
    ("shape", "times"),
    [
        (Shape(), {0.0: b"abcdefghijkl"}),
        (Shape(delay_s=0.5), {0.5: b"abcdefghijkl"}),
        (Shape(bytes_per_s=4.0), {1.0: b"abcd", 3.0: b"efghijkl"}),
        (Shape(bytes_per_s=4.0, delay_s=0.5), {1.5: b"abcd", 3.5: b"efghijkl"}),
    ],
)
def test_bytes_arrive_after_the_delay_and_at_the_rate(shape: Shape, times: dict[float, bytes], ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], shape)
    flow.take(b"abcd", 0.0)
    flow.take(b"efghijkl", 0.0)
    first = next(iter(times))
    assert flow.due_in(0.0) == first
    assert flow.due_in(first - 0.25) == 0.25
    assert flow.due_in(100.0) == 0.0
    assert arrivals(flow, ends[3], 0.25, 4.0) == list(times.items())
    assert flow.due_in(4.0) is None


def test_link_that_was_idle_starts_at_its_rate_again(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape(bytes_per_s=4.0))
    flow.take(b"abcd", 0.0)
    assert arrivals(flow, ends[3], 0.5, 3.0) == [(1.0, b"abcd")]
    flow.take(b"efgh", 10.0)
    assert flow.due_in(10.0) == 1.0


def test_pieces_have_irregular_sizes_and_pauses(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape(in_pieces=True))
    data = bytes(range(250)) * 10
    flow.take(data[:3], 0.0)
    flow.take(data[3:], 0.0)
    found = arrivals(flow, ends[3], 0.001, 0.1)
    assert b"".join(piece for _, piece in found) == data
    assert [len(piece) for _, piece in found] == [1, 1, 1, 5, 3, 509, 1, 7, 1021, 1, 1, 2, 5, 3, 509, 1, 7, 422]
    assert [now for now, _ in found] == pytest.approx([0.002 * number for number in range(1, 19)])


def test_sender_must_wait_while_the_buffer_is_full(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape())
    flow.take(bytes(BUFFER_BYTES - 1), 0.0)
    assert flow.wants
    flow.take(b"x", 0.0)
    assert not flow.wants
    while flow.write(0.0):
        ends[3].recv(1 << 20)
    assert flow.wants


def test_receiver_that_reads_slowly_gets_every_byte_in_order(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape())
    data = bytes(range(256)) * 8192
    flow.take(data[:1000], 0.0)
    flow.take(data[1000:], 0.0)
    assert flow.write(0.0)
    assert not flow.write(0.0)  # no room
    got = b""
    while len(got) < len(data):
        got += ends[3].recv(1 << 20)
        flow.write(0.0)
    assert got == data
    assert flow.due_in(0.0) is None


def test_end_is_passed_on_after_the_last_byte(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape(delay_s=1.0))
    assert flow.read() == b""
    assert flow.wants  # there was nothing yet
    ends[0].send(b"ab")
    flow.take(flow.read(), 0.0)
    ends[0].shutdown(socket.SHUT_WR)
    assert flow.read() == b""
    assert not flow.wants
    flow.finish()
    assert not flow.is_over
    assert flow.write(1.0)
    flow.finish()
    assert flow.is_over
    assert (ends[3].recv(10), ends[3].recv(10)) == (b"ab", b"")


def test_flow_to_a_receiver_that_is_gone_is_over(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape())
    ends[3].close()
    flow.take(b"ab", 0.0)
    assert not flow.write(0.0)
    assert (flow.is_over, flow.wants, flow.due_in(0.0)) == (True, False, None)


# ---- the links of a world --------------------------------------------------------------------------------------------


class World:
    """A relay, and for each rank a listening socket."""

    def __init__(self, fault: Fault | None = None, shapes: dict[tuple[int, int], Shape] | None = None, size: int = 2):
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
        ports = [listener.getsockname()[1] for listener in self.listeners]
        self.alive, self.faults = dict.fromkeys(range(size), True), 0
        self.relay = Relay(ports, shapes or {}, fault, lambda rank: self.alive[rank], self.on_fault)
        self.opened = [*self.listeners]

    def on_fault(self) -> None:
        self.faults += 1

    def until(self, fact: Callable[[], object], what: str) -> None:
        """Let the relay work until a fact is true."""
        deadline = time.monotonic() + 20
        while not fact():
            assert time.monotonic() < deadline, f"waiting for {what}"
            self.relay.turn(0.005)

    def connect(self, i: int, j: int) -> tuple[socket.socket, socket.socket]:
        """Return rank i's end and rank j's end of a new connection."""
        host, _, port = self.relay.address((i, j)).partition(":")
        near = socket.create_connection((host, int(port)))
        before = self.relay.connections[i, j]
        self.listeners[j].setblocking(False)
        accepted: list[socket.socket] = []

        def accept() -> bool:
            try:
                accepted.append(self.listeners[j].accept()[0])
            except BlockingIOError:
                return False
            return True

        self.until(accept, f"rank {j}'s end")
        assert self.relay.connections[i, j] == before + 1
        self.opened += [near, *accepted]
        for end in (near, *accepted):
            end.setblocking(False)
        return near, accepted[0]

    def pass_on(self, data: bytes, near: socket.socket, far: socket.socket) -> bytes:
        """Send bytes; return those that arrive, as far as the relay passes them."""
        near.send(data)
        got = bytearray()
        quiet = 0
        while quiet < 20 and len(got) < len(data):
            self.relay.turn(0.001)
            try:
                piece = far.recv(1 << 20)
            except BlockingIOError:
                quiet += 1
                continue
            if not piece:
                break
            got += piece
        return bytes(got)

    def close(self) -> None:
        self.relay.close()
        for each in self.opened:
            each.close()


def test_bytes_pass_and_are_counted_by_link_in_both_directions() -> None:
    with closing(World(size=3)) as world:
        near, far = world.connect(0, 2)
        assert world.relay.first_at is None
        assert world.pass_on(b"hello", near, far) == b"hello"
        assert world.pass_on(b"hi", far, near) == b"hi"
        other = world.connect(0, 2)
        assert world.pass_on(b"again", *other) == b"again"
        assert dict(world.relay.sent) == {(0, 2): 10, (2, 0): 2}
        assert dict(world.relay.connections) == {(0, 2): 2}
        assert world.relay.first_at is not None
        assert world.relay.last_at is not None
        assert 0 < world.relay.last_at - world.relay.first_at < 20
        assert world.faults == 0


def test_end_of_one_direction_leaves_the_other_open() -> None:
    with closing(World()) as world:
        near, far = world.connect(0, 1)
        near.shutdown(socket.SHUT_WR)
        ended: list[bytes] = []

        def has_ended() -> bool:
            try:
                ended.append(far.recv(1))
            except BlockingIOError:
                return False
            return True

        world.until(has_ended, "the end")
        assert ended == [b""]
        assert world.pass_on(b"still here", far, near) == b"still here"
        far.shutdown(socket.SHUT_WR)
        world.until(lambda: not world.relay._flows, "both ends")


def test_rank_that_does_not_listen_yet_is_tried_again_and_a_dead_one_is_not() -> None:
    with closing(World()) as world:
        world.listeners[1].close()
        host, _, port = world.relay.address((0, 1)).partition(":")
        near = socket.create_connection((host, int(port)))
        world.opened.append(near)
        near.setblocking(False)
        for _ in range(5):
            world.relay.turn(0.01)
        with pytest.raises(BlockingIOError):
            near.recv(1)
        world.alive[1] = False

        def is_closed() -> bool:
            try:
                return near.recv(1) == b""
            except BlockingIOError:
                return False

        world.until(is_closed, "the end of the connection")


@pytest.mark.parametrize("kind", ["cut", "reset", "kill"])
def test_fault_comes_after_its_bytes(kind: str) -> None:
    fault = Fault(kind, (0, 0) if kind == "kill" else (0, 1), 6)
    with closing(World(fault, size=3)) as world:
        near, far = world.connect(0, 1)
        assert world.pass_on(b"back", far, near) == b"back"  # this direction does not count
        assert world.pass_on(b"abc", near, far) == b"abc"
        other = world.connect(0, 2)
        assert world.pass_on(b"de", *other) == b"de"
        assert world.faults == 0
        if kind == "kill":  # one byte of what it sends is left
            assert world.pass_on(b"fghij", near, far) == b"f"
            assert world.pass_on(b"x", *other) == b""
            assert dict(world.relay.sent) == {(0, 1): 4, (0, 2): 2, (1, 0): 4}
        elif kind == "cut":
            assert world.pass_on(b"defghij", near, far) == b""  # read, and never written
            assert dict(world.relay.sent) == {(0, 1): 6, (0, 2): 2, (1, 0): 4}
            assert world.pass_on(b"x", far, near) == b""
            assert world.pass_on(b"fine", *other) == b"fine"
        else:
            near.send(b"defghij")
            world.until(lambda: world.faults, "the reset")
            world.relay.turn(0.0)
            for end in (near, far):
                with pytest.raises(ConnectionResetError):
                    end.recv(1)
            assert world.pass_on(b"fine", *other) == b"fine"
        assert world.faults == 1


def test_exactly_the_bytes_before_a_fault_do_not_strike() -> None:
    with closing(World(Fault("cut", (0, 1), 3))) as world:
        near, far = world.connect(0, 1)
        assert world.pass_on(b"abc", near, far) == b"abc"
        assert world.faults == 0
        assert world.pass_on(b"d", near, far) == b""
        assert world.faults == 1


def test_each_direction_has_its_own_shape() -> None:
    with closing(World(shapes={(1, 0): Shape(bytes_per_s=1.0)})) as world:
        near, far = world.connect(0, 1)
        assert world.pass_on(b"fast", near, far) == b"fast"
        assert world.pass_on(b"slow", far, near) == b""


def test_reset_is_a_linger_of_no_seconds(ends: Ends) -> None:
    flow = Flow((0, 1), ends[1], ends[2], Shape())
    flow.take(b"ab", 0.0)
    flow.reset()
    assert struct.unpack("ii", ends[1].getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) == (1, 0)
    assert (flow.is_over, flow.wants, flow.due_in(0.0)) == (True, False, None)

"""Run the learner's exchange on ranks that take turns, with sockets that move few bytes at a time; then over TCP."""

import contextlib
import random
import select
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from frog.learn.grader.turns import Turns, pretend_clock

PATIENCE_S = 1000.0
MOST_CALLS = 4000
"""Calls on sockets within one exchange; the longest of the check needs about 700."""
BUFFERS = {"ring": 4096, "alone": 1 << 18}
"""Bytes that the check asks the system to keep for each direction; it may keep a few times as many."""
real_select = select.select
pretend_clock()
here = threading.local()


class GaveUp(BaseException):
    """Ends an exchange that calls its sockets again and again without a result."""


class Wire(socket.socket):
    """A real socket on which each call moves at most as many bytes as the seed says, in ranks that take turns."""

    def prepare(self, turns: Turns, rank: int, seed: int, most: int, buffer_bytes: int) -> "Wire":
        self.turns, self.rank, self.draw, self.most = turns, rank, random.Random(seed), most
        self.timeout_s: float | None = 0.0
        self.num_calls, self.num_ends, self.sent, self.received = 0, 0, 0, 0
        super().setblocking(False)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        return self

    def settimeout(self, value: float | None) -> None:
        self.timeout_s = value

    def gettimeout(self) -> float | None:
        return self.timeout_s

    def setblocking(self, flag: bool) -> None:
        self.timeout_s = None if flag else 0.0

    def send(self, data: Any, flags: int = 0) -> int:
        part = memoryview(data).cast("B")[: self.draw.randint(1, self.most)]
        return self.in_turn("send", lambda: socket.socket.send(self, part, flags), flags, writes=True)

    def sendall(self, data: Any, flags: int = 0) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self.send(rest, flags) :]

    def sendmsg(self, buffers: Iterable[Any], ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        return self.send(b"".join(bytes(part) for part in buffers), flags)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        size = min(bufsize, self.draw.randint(1, self.most))
        if flags & socket.MSG_WAITALL and self.timeout_s is None:
            return self.receive_all(bufsize)
        return self.in_turn("recv", lambda: socket.socket.recv(self, size, flags), flags)

    def receive_all(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (part := self.recv(size - len(data))):
            data += part
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(min(nbytes or len(view), len(view)), flags)
        view[: len(data)] = data
        return len(data)

    def in_turn(self, name: str, call: Callable[[], Any], flags: int, writes: bool = False) -> Any:
        """Call in this rank's turn; a blocking socket waits until the call can succeed."""
        self.num_calls += 1
        if self.num_calls > MOST_CALLS:
            raise GaveUp
        waits = self.timeout_s != 0.0 and not flags & socket.MSG_DONTWAIT
        found = self.turns.do(
            self.rank,
            f"{name}()",
            call,
            is_ready=lambda: not waits or is_ready([self][writes:], [self] * writes),
            timeout_s=self.timeout_s if waits else None,
        )
        self.turns.write()
        self.sent += found if writes else 0
        self.received += 0 if writes else len(found)
        self.num_ends += found == b""
        if self.num_ends > 100:
            raise GaveUp
        return found


def is_ready(readers: list[Any], writers: list[Any]) -> bool:
    return any(real_select(readers, writers, [], 0)[:2])


def select_in_turn(readers: Any, writers: Any, errors: Any, timeout: float | None = None) -> Any:
    """Be select.select for a rank that takes turns: while it waits, the others run, and then the clock advances."""
    if not hasattr(here, "turns"):
        return real_select(readers, writers, errors, timeout)
    readers, writers = list(readers), list(writers)
    here.num_selects += 1
    if here.num_selects > MOST_CALLS:
        raise GaveUp
    try:
        return here.turns.do(
            here.rank,
            f"select({len(readers)} to read, {len(writers)} to write)",
            lambda: real_select(readers, writers, [], 0),
            is_ready=lambda: is_ready(readers, writers),
            timeout_s=None if timeout is None or timeout < 0 else timeout,
        )
    except TimeoutError:
        return [], [], []


class Poll:
    """select.poll and select.epoll, by select."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.wanted: dict[int, int] = {}

    def register(self, fd: Any, eventmask: int = 5) -> None:
        self.wanted[fd if isinstance(fd, int) else fd.fileno()] = eventmask

    modify = register

    def unregister(self, fd: Any) -> None:
        del self.wanted[fd if isinstance(fd, int) else fd.fileno()]

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        return self.found(None if timeout is None or timeout < 0 else timeout / 1000)

    def found(self, timeout_s: float | None) -> list[tuple[int, int]]:
        readers, writers = ([fd for fd, mask in self.wanted.items() if mask & bit] for bit in (1, 4))
        readable, writable, _ = select_in_turn(readers, writers, [], timeout_s)
        return [(fd, (fd in readable) + 4 * (fd in writable)) for fd in self.wanted if fd in {*readable, *writable}]

    def close(self) -> None:
        pass


class Epoll(Poll):
    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        return self.found(timeout)


select.select = select_in_turn
select.poll, select.epoll = Poll, Epoll
selectors.SelectSelector._select = staticmethod(select_in_turn)
selectors.DefaultSelector = selectors.PollSelector = selectors.EpollSelector = selectors.SelectSelector


def memory(values: list[int], item_bytes: int) -> Any:
    """Return memory whose items have 1, 4 or 8 bytes."""
    data = bytes(values)
    return memoryview(bytearray(data)).cast({1: "B", 4: "f", 8: "d"}[item_bytes]) if data else bytearray()


def outcome(learner: ModuleType, *about: Any) -> str:
    """Return how an exchange ended: "" if it returned. An error that no docstring of a socket mentions passes."""
    try:
        learner.exchange(*about)
    except (GaveUp, OSError, EOFError, ValueError, IndexError, struct.error, learner.FrameError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def work(learner: ModuleType, case: dict[str, Any]) -> Any:
    return [run(learner, one) for one in case["runs"]]


def run(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    return ring(learner, case) if case["kind"] == "ring" else alone(learner, case)


def in_rank(turns: Turns, rank: int, does: Callable[[], None]) -> Callable[[], None]:
    def be() -> None:
        here.turns, here.rank, here.num_selects = turns, rank, 0
        does()

    return be


def run_all(turns: Turns, ranks: list[Callable[[], None]]) -> None:
    errors = turns.run(ranks)
    if errors:
        raise errors[0]


def ring(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let the ranks of a ring exchange several frames one after the other."""
    size = case["size"]
    turns = Turns(case["seed"], size, PATIENCE_S)
    ends = make_ends(turns, case)
    rounds: list[list[Any]] = [[] for _ in range(size)]

    def be(rank: int) -> None:
        right, left = ends[rank]
        for frames in case["rounds"]:
            out, into = (
                memory(frames[r], case["item_bytes"]) if r == rank else memory([0] * len(frames[r]), case["item_bytes"])
                for r in (rank, (rank - 1) % size)
            )
            for wire in (right, left):
                wire.setblocking(False)
                wire.num_calls = 0
            here.num_selects = 0
            error = outcome(learner, right, left, out, into, 10.0)
            rounds[rank].append({"error": error, "into": bytes(into)})
            if error:
                return

    run_all(turns, [in_rank(turns, rank, lambda rank=rank: be(rank)) for rank in range(size)])
    sent, received = [right.sent for right, _ in ends], [left.received for _, left in ends]
    for pair in ends:
        for wire in pair:
            wire.close()
    return {"rounds": rounds, "stuck": turns.stopped or "", "sent": sent, "received": received}


def make_ends(turns: Turns, case: dict[str, Any]) -> list[tuple[Wire, Wire]]:
    """Return each rank's sockets to its right and to its left neighbor: one socket if there are two ranks."""
    size = case["size"]
    pairs = [wires(turns, (rank, (rank + 1) % size), case) for rank in range(size if size > 2 else 1)]
    if size == 2:
        return [(pairs[0][0], pairs[0][0]), (pairs[0][1], pairs[0][1])]
    return [(pairs[rank][0], pairs[rank - 1][1]) for rank in range(size)]


def wires(turns: Turns, ranks: tuple[int, int], case: dict[str, Any]) -> list[Wire]:
    ends = socket.socketpair()
    made = [Wire(fileno=end.detach()) for end in ends]
    return [
        wire.prepare(turns, rank, case["seed"] + 7 * rank + number, case["most"], BUFFERS[case["kind"]])
        for number, (wire, rank) in enumerate(zip(made, ranks, strict=True))
    ]


def alone(learner: ModuleType, case: dict[str, Any]) -> dict[str, Any]:
    """Let one rank exchange a frame with a neighbor that sends exactly the given bytes, at the given moments."""
    turns = Turns(case["seed"], 2, PATIENCE_S)
    right, right_end = wires(turns, (0, 1), case)
    left, left_end = wires(turns, (0, 1), case)
    found: dict[str, Any] = {"error": "", "into": b"", "took_s": 0.0}
    arrived = bytearray()

    def be() -> None:
        out, into = memory(case["out"], case["item_bytes"]), memory([0] * case["num_bytes"], case["item_bytes"])
        began_s = time.monotonic()
        found["error"] = outcome(learner, right, left, out, into, case["timeout_s"])
        found.update(into=bytes(into), took_s=time.monotonic() - began_s)
        found["calls"] = here.num_selects

    def neighbor() -> None:
        for wait_s, data in case["sends"]:
            if wait_s:
                time.sleep(wait_s)
            real = memoryview(data)
            while real:
                real = real[socket.socket.send(left_end, real) :]
            turns.write()
        if case["closes"]:
            left_end.close()
            turns.write()

    run_all(turns, [in_rank(turns, 0, be), in_rank(turns, 1, neighbor)])
    found["stuck"], found["num_ends"], found["received"] = turns.stopped or "", left.num_ends, left.received
    found.update(arrived=drain(right_end, arrived), rest=drain(left, bytearray()))
    found["shut"] = is_shut(right_end)
    for wire in (right, right_end, left, left_end):
        wire.close()
    return found


def drain(wire: Wire, data: bytearray) -> bytes:
    """Return the bytes that have not been received yet."""
    with contextlib.suppress(BlockingIOError, OSError):
        while part := socket.socket.recv(wire, 1 << 16):
            data += part
    return bytes(data)


def is_shut(wire: Wire) -> bool:
    """True if the other end was closed, or has announced that it will send nothing more."""
    try:
        return socket.socket.recv(wire, 1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def over_tcp(learner: ModuleType, case: dict[str, Any]) -> Any:
    """Be one of several processes in a ring of TCP connections, and exchange large frames."""
    rank, size = dist.get_rank(), dist.get_world_size()
    listener = socket.create_server(("127.0.0.1", 0))
    ports: list[Any] = [None] * size
    dist.all_gather_object(ports, listener.getsockname()[1])
    right = socket.create_connection(("127.0.0.1", ports[(rank + 1) % size]))
    left, _ = listener.accept()
    right.setblocking(False)
    left.setblocking(False)
    out = torch.arange(case["numel"], dtype=torch.int64) * size + rank
    into = torch.zeros(case["numel"], dtype=torch.int64)
    for _ in range(2):
        learner.exchange(right, left, memoryview(out.numpy()), memoryview(into.numpy()), 60.0)
    return into

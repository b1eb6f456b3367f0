"""The links between peers: every connection passes through here, is counted, and can be slowed, cut or reset.

Each pair of ranks (i, j) has its own address. A connection to it comes from rank i and is meant for rank j; the relay
connects to j as soon as j listens, and forwards bytes in both directions. So it can count the bytes of each link
regardless of their content, and needs no privileges. It uses one thread: `turn` is called in a loop.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from frog.measure.peers.flow import BUFFER_BYTES, Flow
from frog.measure.peers.observed import Fault, Pair, Shape

_CONNECT_S = 0.05
_TRY_AGAIN_S = 0.01
_GONE = select.POLLHUP | select.POLLERR


class _Coming(NamedTuple):
    """A connection whose other end does not exist yet."""

    pair: Pair
    near: socket.socket


class Relay:
    """The links of a world.

    ports: the port of each rank, possibly not in use yet. is_alive: tells whether a rank's process still runs.
    on_fault: called once, when the bytes before the fault have passed.
    """

    def __init__(
        self,
        ports: Sequence[int],
        shapes: Mapping[Pair, Shape],
        fault: Fault | None,
        is_alive: Callable[[int], bool],
        on_fault: Callable[[], None],
    ) -> None:
        self._ports, self._shapes, self._fault = ports, shapes, fault
        self._is_alive, self._on_fault = is_alive, on_fault
        world = range(len(ports))
        self._listeners = {(i, j): _listener() for i in world for j in world if i != j}
        self._coming: list[_Coming] = []
        self._flows: list[Flow] = []
        self._struck = False
        """True after the fault."""
        self.sent: Counter[Pair] = Counter()
        self.connections: Counter[Pair] = Counter()
        self.first_at: float | None = None
        self.last_at: float | None = None

    def address(self, pair: Pair) -> str:
        """Return the address at which the first rank reaches the second."""
        return f"127.0.0.1:{self._listeners[pair].getsockname()[1]}"

    def close(self) -> None:
        for flow in self._flows:
            flow.source.close()
        for coming in self._coming:
            coming.near.close()
        for listener in self._listeners.values():
            listener.close()

    def turn(self, timeout_s: float) -> None:
        """Wait for an event, at most `timeout_s`, and handle it."""
        self._connect_on()
        events = self._wait(timeout_s)
        for pair, listener in self._listeners.items():
            if listener.fileno() in events:
                with contextlib.suppress(OSError):  # the connection is gone again
                    self._coming.append(_Coming(pair, _prepared(listener.accept()[0])))
                    self.connections[pair] += 1
        for flow in list(self._flows):
            if self._is_silent(flow.pair):
                continue
            if flow.wants and events.get(flow.source.fileno(), 0) & (select.POLLIN | _GONE):
                self._read(flow)
            if not self._is_silent(flow.pair) and flow.due_in(time.monotonic()) == 0.0:
                self._write(flow, events)
        self._forget_closed()

    def _wait(self, timeout_s: float) -> dict[int, int]:
        now, masks = time.monotonic(), {listener.fileno(): select.POLLIN for listener in self._listeners.values()}
        for flow in self._flows:
            if self._is_silent(flow.pair):
                continue
            if flow.wants:
                masks[flow.source.fileno()] = masks.get(flow.source.fileno(), 0) | select.POLLIN
            due_in = flow.due_in(now)
            if due_in == 0.0:
                masks[flow.sink.fileno()] = masks.get(flow.sink.fileno(), 0) | select.POLLOUT
            elif due_in is not None:
                timeout_s = min(timeout_s, due_in)
        poll = select.poll()
        for descriptor, mask in masks.items():
            poll.register(descriptor, mask)
        return dict(poll.poll((min(timeout_s, _TRY_AGAIN_S) if self._coming else timeout_s) * 1e3))

    def _connect_on(self) -> None:
        """Connect to the requested ranks; try again in the next turn if one does not listen yet."""
        for coming in list(self._coming):
            i, j = coming.pair
            with contextlib.suppress(OSError):
                far = _prepared(socket.create_connection(("127.0.0.1", self._ports[j]), timeout=_CONNECT_S))
                self._flows.append(Flow(coming.pair, coming.near, far, self._shapes.get((i, j), Shape())))
                self._flows.append(Flow((j, i), far, coming.near, self._shapes.get((j, i), Shape())))
                self._coming.remove(coming)
                continue
            if not self._is_alive(j):
                coming.near.close()
                self._coming.remove(coming)

    def _read(self, flow: Flow) -> None:
        data = flow.read()
        if not data:
            return
        struck = self._struck
        if self._fault is not None and not struck:
            data = self._before_fault(flow.pair, data, self._fault)
        if struck and self._is_muted(flow.pair):  # sent before the process died, but too late
            return
        now = time.monotonic()
        self.first_at = self.first_at or now
        self.sent[flow.pair] += len(data)
        flow.take(data, now)
        if self._struck and not struck:
            self._strike()

    def _before_fault(self, pair: Pair, data: bytes, fault: Fault) -> bytes:
        """Return the bytes that still pass. If that is not all of them, inject the fault."""
        if fault.kind == "kill":
            mine, so_far = pair[0] == fault.pair[0], sum(n for (i, _), n in self.sent.items() if i == fault.pair[0])
        else:
            mine, so_far = pair == fault.pair, self.sent[pair]
        if not mine or so_far + len(data) <= fault.after_bytes:
            return data
        self._struck = True
        return data[: fault.after_bytes - so_far]

    def _strike(self) -> None:
        fault = self._fault
        for flow in self._flows:
            if fault is not None and fault.kind == "reset" and set(flow.pair) == set(fault.pair):
                flow.reset()
        self._on_fault()

    def _is_muted(self, pair: Pair) -> bool:
        return self._fault is not None and self._fault.kind == "kill" and pair[0] == self._fault.pair[0]

    def _is_silent(self, pair: Pair) -> bool:
        fault = self._fault
        return self._struck and fault is not None and fault.kind == "cut" and set(pair) == set(fault.pair)

    def _write(self, flow: Flow, events: Mapping[int, int]) -> None:
        if events.get(flow.sink.fileno(), 0) & (select.POLLOUT | _GONE) and flow.write(time.monotonic()):
            self.last_at = time.monotonic()

    def _forget_closed(self) -> None:
        """Close connections on which nothing moves any more, in either direction."""
        for flow in self._flows:
            flow.finish()
        open_ones = {flow.source for flow in self._flows if not flow.is_over}
        over = [flow for flow in self._flows if flow.source not in open_ones and flow.sink not in open_ones]
        for flow in over:
            flow.source.close()
            self._flows.remove(flow)


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # what is accepted here inherits it
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _prepared(connection: socket.socket) -> socket.socket:
    """Configure a connection: non-blocking, small buffers, every piece sent immediately."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection

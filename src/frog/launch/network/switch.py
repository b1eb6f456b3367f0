"""The switch between simulated nodes, a separate process: python -m frog.launch.network.switch '{"num_nodes": 2, …}'

It creates the nodes' networks, then forwards their frames at the times that the fabric computes. It reads requests as
lines of JSON ({"act": "cut", "node_rank": 1}, "heal", "describe") and answers each with a line. It ends when its input
closes, and so also when the process that started it is killed.

The fabric is the links and the switch as arithmetic on times, without a clock:

    node a ── line up ──> (delay) ──> switch: line down ──> node b

A line is one direction of a node's link. A frame waits until the frames before it have left, then takes its bits
divided by the rate. So a single sender reaches the full rate, two senders to the same node share that node's line down,
and a node can send and receive at full rate together. The delay applies once per frame. A line drops frames that do not
fit into its queue, as a full router port does; TCP then slows down.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frog.core.errors import LaunchError
from frog.core.schema import decode
from frog.launch.network.link import Link
from frog.launch.network.namespaces import Namespaces, mac_of, make_node, make_shared
from frog.launch.network.network import SwitchRequest, SwitchSettings

_BROADCAST = b"\xff" * 6


class Line:
    """One direction of a link: a queue before a wire with a fixed rate."""

    def __init__(self, bytes_per_s: float, queue_bytes: int) -> None:
        self._bytes_per_s, self._queue_bytes = bytes_per_s, queue_bytes
        self._free_s = 0.0

    def accept(self, now_s: float, num_bytes: int) -> float | None:
        """Return the time at which a frame that arrives now has left the line; None if the queue is full."""
        start_s = max(now_s, self._free_s)
        if (start_s - now_s) * self._bytes_per_s + num_bytes > self._queue_bytes:
            return None
        self._free_s = start_s + num_bytes / self._bytes_per_s
        return self._free_s


@dataclass
class Port:
    """One node's link and its counters."""

    up: Line
    down: Line
    draw: random.Random
    is_cut: bool = False
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            (
                *("sent_frames", "sent_bytes", "received_frames", "received_bytes"),
                *("lost_frames", "overflowed_frames", "cut_frames"),
            ),
            0,
        )
    )


_Flight = tuple[float, int, int, int, bool, bytes]
"""A frame in transit: its due time, a number that keeps the order, source, target, True if it has left the line down
(and is due at its node) or False (and is due at the switch), and its bytes. A tuple, since the heap is the hot path."""


class Fabric:
    """All links and the switch between them."""

    def __init__(self, num_nodes: int, link: Link) -> None:
        self._link = link
        self._ports = [self._port(node_rank) for node_rank in range(num_nodes)]
        self._node_of = {mac_of(node_rank): node_rank for node_rank in range(num_nodes)}
        self._flights: list[_Flight] = []
        self._numbers = itertools.count()
        self.worst_late_s = self._sum_late_s = 0.0
        self._num_delivered = 0

    def _port(self, node_rank: int) -> Port:
        link = self._link
        up, down = (Line(link.rate_bits_per_s / 8, link.queue_bytes) for _ in range(2))
        return Port(up, down, random.Random(f"{link.seed} node {node_rank}"))

    def cut(self, node_rank: int) -> None:
        """Drop all frames to or from this node from now on, including frames in transit."""
        self._ports[node_rank].is_cut = True

    def heal(self, node_rank: int) -> None:
        self._ports[node_rank].is_cut = False

    @property
    def due_s(self) -> float | None:
        """Due time of the next frame; None without frames."""
        return self._flights[0][0] if self._flights else None

    def take(self, now_s: float, source: int, frame: bytes) -> None:
        """Accept a frame from a node, to one node or to all others. Ignores frames for unknown addresses."""
        to = frame[:6]
        if to == _BROADCAST:
            targets = [node for node in range(len(self._ports)) if node != source]
        elif to in self._node_of:
            targets = [self._node_of[to]]
        else:
            return
        port, size = self._ports[source], len(frame)
        port.counts["sent_frames"] += 1
        port.counts["sent_bytes"] += size
        left_s = port.up.accept(now_s, size)
        if left_s is None:
            port.counts["overflowed_frames"] += 1
        elif port.is_cut:
            port.counts["cut_frames"] += 1
        elif self._link.loss and port.draw.random() < self._link.loss:
            port.counts["lost_frames"] += 1
        else:
            for target in targets:
                self._push(left_s + self._link.delay_s, source, target, False, frame)

    def deliver(self, now_s: float, write: Callable[[int, bytes], None]) -> None:
        """Call `write` (node, frame) for each frame that is due."""
        flights = self._flights
        while flights and flights[0][0] <= now_s:
            due_s, _, source, target, is_at_node, frame = heapq.heappop(flights)
            port = self._ports[target]
            if port.is_cut or self._ports[source].is_cut:
                port.counts["cut_frames"] += 1
            elif is_at_node:
                self._count_delivery(port, len(frame), now_s - due_s)
                write(target, frame)
            elif (arrives_s := port.down.accept(due_s, len(frame))) is None:
                port.counts["overflowed_frames"] += 1
            else:
                self._push(arrives_s, source, target, True, frame)

    def _push(self, due_s: float, source: int, target: int, is_at_node: bool, frame: bytes) -> None:
        heapq.heappush(self._flights, (due_s, next(self._numbers), source, target, is_at_node, frame))

    def _count_delivery(self, port: Port, num_bytes: int, late_s: float) -> None:
        port.counts["received_frames"] += 1
        port.counts["received_bytes"] += num_bytes
        self.worst_late_s = max(self.worst_late_s, late_s)
        self._sum_late_s += late_s
        self._num_delivered += 1

    def describe(self) -> dict[str, Any]:
        """Return the counters of each link, and how late the switch delivered frames."""
        nodes = [{"node_rank": rank, "is_cut": port.is_cut, **port.counts} for rank, port in enumerate(self._ports)]
        mean_late_s = self._sum_late_s / self._num_delivered if self._num_delivered else 0.0
        return {"nodes": nodes, "mean_late_s": mean_late_s, "worst_late_s": self.worst_late_s}


_INPUT, _OUTPUT = 0, 1
_AT_ONCE = 32
"""Frames to read from one node before the next node's turn."""


class Switch:
    """Moves frames between the nodes' interfaces."""

    def __init__(self, nodes: list[Namespaces], fabric: Fabric, mtu: int) -> None:
        self._taps = [node.tap for node in nodes]
        self._node_of = {tap: node_rank for node_rank, tap in enumerate(self._taps)}
        self._fabric, self._frame_bytes = fabric, mtu + 18
        self._requests = b""

    def serve(self) -> None:
        """Forward frames and answer requests until the input ends."""
        fabric = self._fabric
        watched = [*self._taps, _INPUT]  # read earlier frames before answering a request
        while True:
            due_s = fabric.due_s
            timeout_s = None if due_s is None else max(0.0, due_s - time.monotonic())
            ready, _, _ = select.select(watched, [], [], timeout_s)
            for descriptor in ready:
                if descriptor != _INPUT:
                    self._read_frames(descriptor)
                elif not self._answer():
                    return
            fabric.deliver(time.monotonic(), self._write)

    def _read_frames(self, tap: int) -> None:
        node_rank = self._node_of[tap]
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(tap, self._frame_bytes)
            except BlockingIOError:
                return
            self._fabric.take(time.monotonic(), node_rank, frame)

    def _write(self, node_rank: int, frame: bytes) -> None:
        # A node without space for a frame loses it, like a network card.
        with contextlib.suppress(OSError):
            os.write(self._taps[node_rank], frame)

    def _answer(self) -> bool:
        """Handle requests; return False when the input has ended."""
        received = os.read(_INPUT, 65536)
        *lines, self._requests = (self._requests + received).split(b"\n")
        for line in lines:
            request = decode(line, SwitchRequest, "a request to the switch", error=LaunchError)
            if request.act == "cut" and request.node_rank is not None:
                self._fabric.cut(request.node_rank)
            elif request.act == "heal" and request.node_rank is not None:
                self._fabric.heal(request.node_rank)
            _say(self._fabric.describe())
        return bool(received)


def _say(answer: dict[str, Any]) -> None:
    os.write(_OUTPUT, (json.dumps(answer) + "\n").encode())


def main() -> int:
    """Create the nodes, print how to enter them, and serve until the input ends."""
    settings = decode(sys.argv[1], SwitchSettings, "the switch's settings", error=LaunchError)
    num_nodes, link = settings.num_nodes, settings.link
    try:
        shared = make_shared(num_nodes)
        nodes = [make_node(node_rank, num_nodes, link.mtu) for node_rank in range(num_nodes)]
    except OSError as error:
        at = f" {error.filename}" if error.filename else ""
        _say({"error": f"{error.strerror}{at}"})
        return 1
    around = [shared.mount] if shared.user is None else [shared.user, shared.mount]
    _say({"descriptors": f"/proc/{os.getpid()}/fd", "nodes": [[*around, node.net, node.uts] for node in nodes]})
    Switch(nodes, Fabric(num_nodes, link), link.mtu).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

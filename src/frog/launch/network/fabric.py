"""Delivery times of frames: the links and the switch as arithmetic on times, without a clock.

    node a ── line up ──> (delay) ──> switch: line down ──> node b

A line is one direction of a node's link. A frame waits until the frames before it have left, then takes its bits
divided by the rate. So a single sender reaches the full rate, two senders to the same node share that node's line down,
and a node can send and receive at full rate together. The delay applies once per frame. A line drops frames that do not
fit into its queue, as a full router port does; TCP then slows down.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frog.launch.network.link import Link

_BROADCAST = b"\xff" * 6


def mac_of(node_rank: int) -> bytes:
    """Return a locally administered hardware address, the same in every run."""
    return bytes([2, 0, 10, 77]) + (node_rank + 1).to_bytes(2, "big")


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

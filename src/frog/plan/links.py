"""The time of a collective over slow links between nodes: the alpha-beta formula.

A message takes alpha (the delay of the link) and its bytes over beta (bytes that the link carries per second). Messages
that wait for each other add their alphas; all bytes that go over one link share its beta:

    T = number of delays on the longest path * alpha + bytes over the busiest link / beta

In textbooks the ring all-reduce of B bytes by n nodes takes 2(n-1) steps, each of which sends B/n bytes:
T = 2(n-1) alpha + 2(n-1)/n B / beta. For gloo's ring, which runs on CPUs, the formula has one difference:
a rank announces that it is about to receive, and only then does its neighbor send. So each step costs two delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from frog.core.units import count
from frog.plan.layout import Layout

_RING_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "send": lambda n: 1,
    "send_recv": lambda n: 1,
    "recv": lambda n: 0,
    "barrier": lambda n: 0,
}


def wire_bytes(op: str, payload_bytes: float, axis_size: int) -> float:
    """Return the bytes that leave one rank for a collective over `axis_size` ranks.

    Units:   bytes. The payload is the full tensor, before or after, as in the events.
    Assumes: ring algorithms, which send the minimum. All-reduce is reduce-scatter, then all-gather. In a broadcast
             or a reduction to one rank, each rank forwards the whole tensor. An all-to-all keeps a rank's own slice.
    Source:  Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return payload_bytes * _RING_SHARE[op](axis_size) if axis_size > 1 else 0.0


_HEADER_BYTES = 52
"""Headers in a packet: IP, TCP, and TCP's time stamps."""

_FRAME_BYTES = 14
"""Header around a packet: Ethernet."""

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Cost:
    """The load that a collective puts on the links between nodes."""

    num_delays: int
    """One-way delays on the longest path through its messages."""
    link_bytes: float
    """Payload over the busiest link, in one direction."""

    def seconds(self, alpha_s: float, beta_bytes_per_s: float) -> float:
        """Apply the alpha-beta formula.

        Assumes: programs take no time, TCP is at full speed from the first byte, and no other traffic is on the links.
        """
        return self.num_delays * alpha_s + self.link_bytes / beta_bytes_per_s


def payload_rate(rate_bits_per_s: float, mtu: int) -> float:
    """Return beta: bytes of payload that a link carries in a second, in packets of `mtu` bytes."""
    return rate_bits_per_s / 8 * (mtu - _HEADER_BYTES) / (mtu + _FRAME_BYTES)


def collective_cost(
    op: str, payload_bytes: float, groups: Sequence[Sequence[int]], *, asks: bool = True
) -> Cost | None:
    """Return the cost of concurrent collectives, one in each of `groups`; None for an operation without a formula.

    `groups` name the node of each rank, in the order of the axis: [[0, 0, 1, 1]] is one ring over two ranks on each of
    two nodes, [[0, 1], [0, 1]] two rings, which share the links. With `asks` receivers request messages, as in gloo.

    Assumes: the algorithms of torch 2.13: rings for all-reduce (of at least 2n numbers, one per segment) and
             all-gather; direct messages between all ranks for all-to-all, which Frog's reduce-scatter uses. Between
             ranks of one node nothing takes time.
    Source:  gloo/allreduce.cc, `ring`. The delays of all three: benchmarks/results/network.txt.
    """
    if op == "all_reduce" and any(payload_bytes < 2 * _FLOAT_BYTES * len(nodes) for nodes in groups):
        return None  # fewer numbers than segments: some steps send nothing
    if op in ("all_reduce", "all_gather"):
        rounds = 2 if op == "all_reduce" else 1
        delays = [_ring_delays(nodes, rounds * (len(nodes) - 1), asks) for nodes in groups]
    elif op in ("all_to_all", "reduce_scatter"):
        rounds = 1
        delays = [(2 if asks else 1) * (len(set(nodes)) > 1) for nodes in groups]
    else:
        return None
    sent: dict[int, float] = {}
    arrived: dict[int, float] = {}
    for nodes in groups:
        for source, target, share in _messages(op, nodes):
            if source != target:
                sent[source] = sent.get(source, 0) + rounds * share * payload_bytes
                arrived[target] = arrived.get(target, 0) + rounds * share * payload_bytes
    return Cost(max(delays, default=0), max([*sent.values(), *arrived.values()], default=0.0))


def _messages(op: str, nodes: Sequence[int]) -> Iterable[tuple[int, int, float]]:
    """Yield the messages of one round: from node, to node, share of the payload."""
    n = len(nodes)
    if op in ("all_reduce", "all_gather"):
        for place, node in enumerate(nodes):
            yield nodes[(place + 1) % n], node, (n - 1) / n
    else:
        for source in range(n):
            for target in range(n):
                if source != target:
                    yield nodes[source], nodes[target], 1 / n


def _ring_delays(nodes: Sequence[int], num_steps: int, asks: bool) -> int:
    """Return the number of delays on the longest path through a ring's steps: each rank's own time, step by step.

    A rank takes its next step when it has received from the rank after it and has sent to the one before it.
    """
    n = len(nodes)
    hop = [int(nodes[place] != nodes[(place + 1) % n]) for place in range(n)]
    done = [0] * n
    for _ in range(num_steps):
        asked = [done[place] + hop[place] if asks else 0 for place in range(n)]
        # A rank receives when its neighbor has reached the step, and has been asked.
        sent = [max(done[(place + 1) % n], asked[place]) for place in range(n)]
        done = [max(sent[place] + hop[place], sent[place - 1]) for place in range(n)]
    return max(done)


_ALONG = {"data": ("dp", "cp"), "world": ("pp", "dp", "cp", "tp"), "tied": ("pp",)}
"""Axes composed of others, or of a part of another one."""


@dataclass(frozen=True)
class SlowNetwork:
    """The links between nodes, all alike, and the node of each rank."""

    nodes: tuple[int, ...]
    delay_s: float
    """One way."""
    bytes_per_s: float
    """Payload."""

    def __str__(self) -> str:
        return (
            f"{count(len(set(self.nodes)), 'node')}, a network of {self.bytes_per_s / 1e6:.3g} MB/s of payload, "
            f"{1e3 * self.delay_s:g} ms one way"
        )

    def seconds(
        self, op: str, num_bytes: float, axis: str, layout: Layout, num_messages: int = 1, in_flight: int = 1
    ) -> float:
        """Return the seconds of collectives on an axis, whose groups all communicate at once.

        Those in flight at a time share the delays, but not the rate.
        """
        groups = self._groups(axis, layout)
        if op == "send_recv":
            crosses = any(len(set(nodes)) > 1 for nodes in groups)
            cost: Cost | None = Cost(2, num_bytes) if crosses else None
        else:
            cost = collective_cost(op, num_bytes, groups)
        if cost is None:
            return 0.0
        all_of_them = Cost(math.ceil(num_messages / in_flight) * cost.num_delays, num_messages * cost.link_bytes)
        return all_of_them.seconds(self.delay_s, self.bytes_per_s)

    def _groups(self, axis: str, layout: Layout) -> list[list[int]]:
        """Return the nodes of the ranks in each group of an axis."""
        along = _ALONG.get(axis, (axis,))
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, node in enumerate(self.nodes):
            place = Layout(layout.config, layout.world_size, rank).place
            found.setdefault(tuple(at for name, at in place.items() if name not in along), []).append(node)
        return list(found.values())

"""The time of a collective over links: the alpha-beta formula, for simulated nodes and for clusters.

A message takes alpha (the delay of the link) and its bytes over beta (bytes that the link carries per second). Messages
that wait for each other add their alphas; all bytes that go over one link share its beta:

    T = number of delays on the longest path * alpha + bytes over the busiest link / beta

In textbooks the ring all-reduce of B bytes by n nodes takes 2(n-1) steps, each of which sends B/n bytes:
T = 2(n-1) alpha + 2(n-1)/n B / beta. For gloo's ring, which runs on CPUs, the formula has one difference:
a rank announces that it is about to receive, and only then does its neighbor send. So each step costs two delays.

`collective_cost` counts the messages of gloo's algorithms between nodes, whichever ranks these have. `SlowNetwork` is
the network that `frog run` simulates, `Links` has the two kinds of links of a GPU cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from frog.core.units import count
from frog.plan.columns import Column, always, choose, least, log2, most
from frog.plan.layout import RankShare


def ring_share(n: Column) -> Column:
    """Return the part of a payload that each of n ranks passes on once around a ring: (n - 1) / n."""
    return (n - 1) / n


_SENT_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * ring_share(n),
    "all_gather": ring_share,
    "reduce_scatter": ring_share,
    "all_to_all": ring_share,
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
    return payload_bytes * _SENT_SHARE[op](axis_size) if axis_size > 1 else 0.0


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
            yield nodes[(place + 1) % n], node, ring_share(n)
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
        self, op: str, num_bytes: float, axis: str, share: RankShare, num_messages: int = 1, in_flight: int = 1
    ) -> float:
        """Return the seconds of collectives on an axis, whose groups all communicate at once.

        Those in flight at a time share the delays, but not the rate.
        """
        groups = self._groups(axis, share)
        if op == "send_recv":
            crosses = any(len(set(nodes)) > 1 for nodes in groups)
            cost: Cost | None = Cost(2, num_bytes) if crosses else None
        else:
            cost = collective_cost(op, num_bytes, groups)
        if cost is None:
            return 0.0
        all_of_them = Cost(math.ceil(num_messages / in_flight) * cost.num_delays, num_messages * cost.link_bytes)
        return all_of_them.seconds(self.delay_s, self.bytes_per_s)

    def _groups(self, axis: str, share: RankShare) -> list[list[int]]:
        """Return the nodes of the ranks in each group of an axis."""
        along = _ALONG.get(axis, (axis,))
        nodes_by_group: dict[tuple[int, ...], list[int]] = {}
        for rank, node in enumerate(self.nodes):
            place = RankShare(share.config, share.world_size, rank).place
            nodes_by_group.setdefault(tuple(at for name, at in place.items() if name not in along), []).append(node)
        return list(nodes_by_group.values())


# ---- a cluster's links -----------------------------------------------------------------------------------------------


_FURTHER_HOP_S = 3.4e-6
"""One hop of a ring over NVLink without the start of the collective, as NCCL itself assumes it when it chooses between
its algorithms (src/graph/tuning.cc, protocol Simple)."""


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `size` of them, `stride` apart; both may be columns."""

    size: Column
    stride: Column

    def inside(self, domain: int) -> Column:
        """Return how many of its ranks share an NVLink domain."""
        return most(1, least(self.size, domain // self.stride))


@dataclass(frozen=True)
class Route:
    """The way of messages between the stages of a pipeline."""

    outside: Column
    """Fraction of them that leave an NVLink domain."""
    network: Column
    """Bytes per second of those."""


@dataclass(frozen=True)
class Links:
    """The two kinds of links of a cluster: inside an NVLink domain, and between domains over a network.

    A ring of n ranks passes (n - 1) / n of the data over its slowest link, and waits for n - 1 hops (Thakur et al.
    2005; Hockney 1994). A group of ranks in one domain uses the links inside. A group over several domains is bounded
    by the network: all groups with the same stride run at once, so each has the adapters of its own members.

    A fat tree may be oversubscribed: the links above a leaf switch carry less than the nodes below it send. Nodes are
    placed leaf by leaf, and a ring enters and leaves each leaf once, so the groups of a leaf share its links.

    Groups and bytes may be columns.
    """

    link: float
    """Bytes per second that a rank sends inside a domain."""
    adapter: float
    """Bytes per second that one rank's share of its node's adapters sends."""
    link_latency_s: float
    network_latency_s: float
    domain: int
    """Ranks of a domain."""
    leaf: int | None = None
    """Ranks below a leaf switch; None: the network has full bandwidth."""
    oversubscription: float = 1.0

    # ---- bandwidth and latency ---------------------------------------------------------------------------------------

    def ring_network(self, group: Group) -> Column:
        """Return the bytes per second between domains at the narrowest place of a ring.

        A ring that leaves a domain has an adapter for each of its ranks inside. Above a leaf switch, each of its ranks
        below the leaf brings the bandwidth of an adapter, divided by the oversubscription.
        """
        inside = group.inside(self.domain)
        if self.leaf is None:
            return inside * self.adapter
        below = self.ranks_below_leaf(group)
        adapters = choose(below >= group.size, inside, least(inside, below / self.oversubscription))
        return adapters * self.adapter

    def ranks_below_leaf(self, group: Group) -> Column:
        """Return how many ranks of a group share a leaf switch; those of a domain count as such."""
        if self.leaf is None:
            return group.size
        return most(group.inside(self.domain), least(group.size, self.leaf // group.stride))

    def bandwidth(self, group: Group) -> Column:
        """Return the bytes per second that a ring through the group moves past each rank."""
        inside = group.inside(self.domain)
        return choose(inside >= group.size, self.link, least(self.link, self.ring_network(group)))

    def latency(self, group: Group) -> Column:
        """Return the latency of a ring: data pass all ranks of all domains, one after another.

        The fitted hops inside the first domain contain the start of the collective; those inside of others do not.
        """
        inside = group.inside(self.domain)
        domains = -(-group.size // inside)
        first = (inside - 1) * self.link_latency_s + (domains - 1) * self.network_latency_s
        return first + (group.size - domains - inside + 1) * least(_FURTHER_HOP_S, self.link_latency_s)

    # ---- collectives -------------------------------------------------------------------------------------------------

    def gather(self, num_bytes: Column, group: Group) -> Column:
        """Return the seconds of an all-gather to, or a reduce-scatter of, `num_bytes` in total."""
        if always(group.size < 2):
            return 0.0 * group.size
        return ring_share(group.size) * num_bytes / self.bandwidth(group) + self.latency(group)

    def all_reduce(self, num_bytes: Column, group: Group) -> Column:
        """Return the seconds of an all-reduce: a reduce-scatter, then an all-gather. The network's part is a tree.

        The ranks of a node add up first, so that only one sum of each node enters the network, as in NCCL's trees.
        """
        if always(group.size < 2):
            return 0.0 * group.size
        inside = group.inside(self.domain)
        domains = -(-group.size // inside)
        hops = (inside - 1) * self.link_latency_s + log2(domains) * self.network_latency_s
        across = 0.0 if always(domains < 2) else ring_share(domains) / self.ring_network(group)
        slowest = most(ring_share(inside) / self.link, across)
        return 2 * num_bytes * slowest + 2 * hops

    def all_to_all(self, num_bytes: float, group: Group, copies: int = 1, most_domains: int = 0) -> float:
        """Return the seconds in which each rank sends `num_bytes` in equal parts to all others.

        They contain `copies` of each row, for random ranks: a domain gets a row once, and passes it on inside. At most
        `most_domains` domains get it.
        """
        if group.size < 2:
            return 0.0
        inside = group.inside(self.domain)
        part = num_bytes / group.size
        domains = -(-group.size // inside)
        distinct = domains * (1 - (1 - 1 / domains) ** copies)
        distinct = (min(distinct, most_domains) if most_domains and copies > 1 else distinct) / copies
        across = part * (group.size - inside) * distinct / self.adapter
        above = part * (group.size - self.ranks_below_leaf(group)) * distinct / (self.adapter / self.oversubscription)
        seconds = max(num_bytes * ring_share(inside) / self.link, across, above)
        return float(seconds + self.link_latency_s + (group.size > inside) * self.network_latency_s)

    # ---- messages between the stages of a pipeline -------------------------------------------------------------------

    def send(self, num_bytes: Column, route: Route) -> Column:
        """Return the mean seconds of a message to the next stage of a pipeline, while all ranks send one.

        The mean, not the slowest: a pass crosses each boundary once when it fills or drains the pipeline, and then
        stages at the edge of a domain wait for their messages while others compute longer.
        """
        inside_s, outside_s = self.send_inside(num_bytes), self.send_outside(num_bytes, route)
        return (1 - route.outside) * inside_s + route.outside * outside_s

    def send_inside(self, num_bytes: Column) -> Column:
        """Return the seconds of a message inside a domain."""
        return num_bytes / self.link + self.link_latency_s

    def send_outside(self, num_bytes: Column, route: Route) -> Column:
        """Return the seconds of a message to the next stage, in another domain."""
        return num_bytes / route.network + self.network_latency_s

    def route(self, group: Group) -> Route:
        """Return the route of messages between the ranks of a group, each to the next.

        Each domain holds neighboring ones, and its last one sends to the next domain; with chunks, the last of all
        sends to the first. All ranks below a leaf send at once, `stride` of them to another leaf: these share the links
        above it.
        """
        domains = -(-group.size // most(1, self.domain // group.stride))
        outside = (domains > 1) * domains / group.size
        if self.leaf is None:
            return Route(outside, self.adapter + 0.0 * group.size)
        above = self.leaf / (least(group.stride, self.leaf) * self.oversubscription)
        return Route(outside, choose(group.size * group.stride <= self.leaf, 1, least(1, above)) * self.adapter)

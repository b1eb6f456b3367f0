"""Time of collectives between GPUs: an alpha-beta model with two kinds of links.

A ring of n ranks passes (n - 1) / n of the data over its slowest link, and waits for n - 1 hops (Thakur et al. 2005;
Hockney 1994). A group of ranks in one NVLink domain uses the links inside. A group over several domains is bounded by
the network: all groups with the same stride run at once, so each has the adapters of its own members.

A fat tree may be oversubscribed: the links above a leaf switch carry less than the nodes below it send. Nodes are
placed leaf by leaf, and a ring enters and leaves each leaf once, so the groups of a leaf share its links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from frog.plan.estimate.constants import Constants
from frog.plan.estimate.hardware import Cluster


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: `size` of them, `stride` apart."""

    size: int
    stride: int

    def inside(self, domain: int) -> int:
        """Return how many of its ranks share an NVLink domain."""
        return max(1, min(self.size, domain // self.stride)) if self.stride else 1


def ring_adapters(cluster: Cluster, size: Any, stride: Any, inside: Any) -> Any:
    """Return the adapters whose bandwidth a ring has at its narrowest place, for numbers or numpy columns.

    A ring that leaves an NVLink domain has an adapter for each of its `inside` ranks. Above a leaf switch, each of its
    ranks below the leaf brings the bandwidth of an adapter, divided by the oversubscription.
    """
    if cluster.gpus_per_leaf is None:
        return inside
    below = ranks_below_leaf(cluster, size, stride, inside)
    stays = below >= size
    return stays * inside + (1 - stays) * _least(inside, below / cluster.oversubscription)


def ranks_below_leaf(cluster: Cluster, size: Any, stride: Any, inside: Any) -> Any:
    """Return how many ranks of a group share a leaf switch, for numbers or columns; those of a domain count as such."""
    if cluster.gpus_per_leaf is None:
        return size
    below = _least(size, cluster.gpus_per_leaf // stride)
    return inside + (below - inside) * (below > inside)


def message_adapters(cluster: Cluster, size: Any, stride: Any) -> Any:
    """Return the part of an adapter that a message to the next of `size` ranks has, for numbers or columns.

    All ranks below a leaf send at once, `stride` of them to another leaf: these share the links above it.
    """
    leaf = cluster.gpus_per_leaf
    if leaf is None:
        return 1
    stays = size * stride <= leaf
    return stays + (1 - stays) * _least(1, leaf / (_least(stride, leaf) * cluster.oversubscription))


def outside_share(cluster: Cluster, size: Any, stride: Any) -> Any:
    """Return the fraction of the messages between pipeline stages that leave an NVLink domain, for numbers or columns.

    Each domain holds neighboring ones of the `size` stages, `stride` ranks apart, and its last one sends to the next
    domain; with chunks, the last stage of all sends to the first.
    """
    stages = cluster.nvlink_domain // stride
    domains = -(-size // (stages + (stages < 1)))
    return (domains > 1) * domains / size


def _least(one: Any, other: Any) -> Any:
    """Return the smaller number, or the column of the smaller numbers."""
    return one * (one <= other) + other * (other < one)


@dataclass(frozen=True)
class Links:
    """The links of a cluster."""

    cluster: Cluster
    constants: Constants

    @property
    def link(self) -> float:
        """Bytes per second of a GPU's links inside a node."""
        return self.cluster.gpu.link_bandwidth * self.constants.link

    def network(self, adapters: float) -> float:
        """Return the bytes per second of so many ranks' adapters."""
        return float(adapters * self.cluster.network_bandwidth_per_gpu * self.constants.network)

    def ring_network(self, group: Group) -> float:
        """Return the bytes per second between nodes at the narrowest place of a group."""
        inside = group.inside(self.cluster.nvlink_domain)
        return self.network(ring_adapters(self.cluster, group.size, group.stride, inside))

    def bandwidth(self, group: Group) -> float:
        """Return the bytes per second that a ring through the group moves past each rank."""
        inside = group.inside(self.cluster.nvlink_domain)
        return self.link if inside >= group.size else min(self.link, self.ring_network(group))

    def latency(self, group: Group) -> float:
        """Return the latency of a ring: one hop per rank inside a domain, and one per domain."""
        inside = group.inside(self.cluster.nvlink_domain)
        domains = math.ceil(group.size / inside)
        return (inside - 1) * self.constants.link_latency_s + (domains - 1) * self.constants.network_latency_s

    def gather(self, num_bytes: float, group: Group) -> float:
        """Return the seconds of an all-gather to, or a reduce-scatter of, `num_bytes` in total."""
        if group.size < 2:
            return 0.0
        return (group.size - 1) / group.size * num_bytes / self.bandwidth(group) + self.latency(group)

    def all_reduce(self, num_bytes: float, group: Group) -> float:
        """Return the seconds of an all-reduce: a reduce-scatter, then an all-gather. The network's part is a tree.

        The ranks of a node add up first, so that only one sum of each node enters the network, as in NCCL's trees.
        """
        if group.size < 2:
            return 0.0
        inside = group.inside(self.cluster.nvlink_domain)
        domains = math.ceil(group.size / inside)
        hops = (inside - 1) * self.constants.link_latency_s + math.log2(domains) * self.constants.network_latency_s
        parts = (inside - 1) / inside / self.link, (domains - 1) / domains / self.ring_network(group)
        return 2 * num_bytes * max(parts) + 2 * hops

    def all_to_all(self, num_bytes: float, group: Group, copies: int = 1, most: int = 0) -> float:
        """Return the seconds in which each rank sends `num_bytes` in equal parts to all others.

        They contain `copies` of each row, for random ranks: a domain gets a row once, and passes it on inside. At most
        `most` domains get it.
        """
        if group.size < 2:
            return 0.0
        inside = group.inside(self.cluster.nvlink_domain)
        part = num_bytes / group.size
        domains = math.ceil(group.size / inside)
        distinct = domains * (1 - (1 - 1 / domains) ** copies)
        distinct = (min(distinct, most) if most and copies > 1 else distinct) / copies
        below = ranks_below_leaf(self.cluster, group.size, group.stride, inside)
        across = part * (group.size - inside) * distinct / self.network(1)
        above = float(part * (group.size - below) * distinct / (self.network(1) / self.cluster.oversubscription))
        seconds = max(num_bytes * (inside - 1) / inside / self.link, across, above)
        return seconds + self.constants.link_latency_s + (group.size > inside) * self.constants.network_latency_s

    def send(self, num_bytes: float, group: Group) -> float:
        """Return the mean seconds of a message to the next stage of a pipeline, while all ranks send one.

        The mean, not the slowest: a pass crosses each boundary once when it fills or drains the pipeline, and then
        stages at the edge of a domain wait for their messages while others compute longer.
        """
        outside = outside_share(self.cluster, group.size, group.stride)
        inside_s, outside_s = self.send_inside(num_bytes), self.send_outside(num_bytes, group)
        return float((1 - outside) * inside_s + outside * outside_s)

    def send_inside(self, num_bytes: float) -> float:
        """Return the seconds of a message inside an NVLink domain."""
        return num_bytes / self.link + self.constants.link_latency_s

    def send_outside(self, num_bytes: float, group: Group) -> float:
        """Return the seconds of a message to the next rank of the group, in another NVLink domain."""
        rate = self.network(message_adapters(self.cluster, group.size, group.stride))
        return num_bytes / rate + self.constants.network_latency_s

"""Time of collectives between GPUs: an alpha-beta model with two kinds of links.

A ring of n ranks passes (n - 1) / n of the data over its slowest link, and waits for n - 1 hops (Thakur et al. 2005;
Hockney 1994). A group of ranks in one NVLink domain uses the links inside. A group over several domains is bounded by
the network: all groups with the same stride run at once, so each has the adapters of its own members.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Links:
    """The links of a cluster."""

    cluster: Cluster
    constants: Constants

    def bandwidth(self, group: Group) -> float:
        """Return the bytes per second that a ring through the group moves past each rank."""
        inside = group.inside(self.cluster.nvlink_domain)
        link = self.cluster.gpu.link_bandwidth * self.constants.link
        if inside >= group.size:
            return link
        return min(link, inside * self.cluster.network_bandwidth_per_gpu * self.constants.network)

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
        """Return the seconds of an all-reduce: a reduce-scatter, then an all-gather. The network's part is a tree."""
        if group.size < 2:
            return 0.0
        inside = group.inside(self.cluster.nvlink_domain)
        depth = math.log2(math.ceil(group.size / inside)) if group.size > inside else 0.0
        hops = (inside - 1) * self.constants.link_latency_s + depth * self.constants.network_latency_s
        return 2 * (group.size - 1) / group.size * num_bytes / self.bandwidth(group) + 2 * hops

    def all_to_all(self, num_bytes: float, group: Group, copies: int = 1, most: int = 0) -> float:
        """Return the seconds in which each rank sends `num_bytes` in equal parts to all others.

        They contain `copies` of each row, for random ranks: a domain gets a row once, and passes it on inside. At most
        `most` domains get it.
        """
        if group.size < 2:
            return 0.0
        inside = group.inside(self.cluster.nvlink_domain)
        link = self.cluster.gpu.link_bandwidth * self.constants.link
        network = self.cluster.network_bandwidth_per_gpu * self.constants.network
        part = num_bytes / group.size
        domains = math.ceil(group.size / inside)
        distinct = domains * (1 - (1 - 1 / domains) ** copies)
        distinct = (min(distinct, most) if most and copies > 1 else distinct) / copies
        seconds = max(num_bytes * (inside - 1) / inside / link, part * (group.size - inside) * distinct / network)
        return seconds + self.constants.link_latency_s + (group.size > inside) * self.constants.network_latency_s

    def send(self, num_bytes: float, stride: int) -> float:
        """Return the seconds of a message to the rank `stride` further."""
        near = stride < self.cluster.nvlink_domain
        if near:
            return num_bytes / (self.cluster.gpu.link_bandwidth * self.constants.link) + self.constants.link_latency_s
        rate = self.cluster.network_bandwidth_per_gpu * self.constants.network
        return num_bytes / rate + self.constants.network_latency_s

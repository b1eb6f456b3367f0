"""Disturbances of a simulated run: jitter, stragglers, slow or cut networks of nodes, a lost rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from frog.plan.estimate.hardware import Cluster
from frog.plan.layout import Layout

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


_MOST_STEPS = 1000


@dataclass(frozen=True)
class Disturbances:
    """Deviations from a run in which equal ranks take equal time."""

    jitter: float = 0.0
    """Mean delay of a rank's computation between two messages, as a fraction of it; delays are exponential."""
    seed: int = 0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)
    """Factors of these ranks' computation."""
    slow_nodes: Mapping[int, float] = field(default_factory=dict)
    """Factors of the time of messages to and from these nodes."""
    lost_rank: tuple[int, int] | None = None
    """A rank, and the step at whose first forward pass it is killed."""
    cut_node: tuple[int, int] | None = None
    """A node, and the step from which no message passes to or from it."""

    def problems(self, num_ranks: int, num_nodes: int, num_steps: int) -> list[str]:
        """Return why these cannot be; empty if they can."""
        too_many = [f"{num_steps:,} steps: must be at most {_MOST_STEPS:,}"] if num_steps > _MOST_STEPS else []
        return [
            *too_many,
            *_outside(self.slow_ranks, num_ranks, "rank"),
            *_outside(self.slow_nodes, num_nodes, "node"),
            *_outside([self.lost_rank[0]] if self.lost_rank else [], num_ranks, "rank"),
            *_outside([self.cut_node[0]] if self.cut_node else [], num_nodes, "node"),
            *(
                f"step {pair[1]} is not one of the {num_steps} steps"
                for pair in (self.lost_rank, self.cut_node)
                if pair is not None and not 1 <= pair[1] <= num_steps
            ),
        ]

    @property
    def exist(self) -> bool:
        return bool(self.jitter or self.slow_ranks or self.slow_nodes or self.lost_rank or self.cut_node)


def _outside(numbers: Mapping[int, float] | list[int], count: int, what: str) -> Iterator[str]:
    return (f"{what} {number}: {what}s are 0 to {count - 1}" for number in numbers if not 0 <= number < count)


class Places:
    """The ranks of a layout as an array, and the factors of their speeds and networks.

    A cell is the group of tp x cp ranks that share a pipeline stage and a data-parallel replica: they exchange data in
    every layer, so they run at the speed of the slowest. Shapes: P stages, D replicas, I ranks of a cell.
    """

    def __init__(self, layout: Layout, cluster: Cluster, disturbed: Disturbances) -> None:
        self.disturbed = disturbed
        self.ranks_PDI = np.arange(layout.num_gpus).reshape(layout.pp, layout.dp, layout.tp * layout.cp)
        self.nodes_PDI = self.ranks_PDI // cluster.gpus_per_node
        self._domains_PDI = self.ranks_PDI // cluster.nvlink_domain
        self.slowness_PDI = _factors(disturbed.slow_ranks, layout.num_gpus)[self.ranks_PDI]
        self._nodes = _factors(disturbed.slow_nodes, int(self.nodes_PDI.max()) + 1)
        self._random = np.random.default_rng(disturbed.seed)
        self.network_PD: Floats = self._nodes[self.nodes_PDI].max(axis=2)

    def keep_one_replica(self) -> None:
        """Drop all data-parallel replicas but one: without disturbances they are equal."""
        self.ranks_PDI, self.nodes_PDI = self.ranks_PDI[:, :1], self.nodes_PDI[:, :1]
        self.slowness_PDI, self.network_PD = self.slowness_PDI[:, :1], self.network_PD[:, :1]
        self._domains_PDI = self._domains_PDI[:, :1]

    def start_step(self, step: int) -> None:
        """Lose the rank and cut the network that are to be lost and cut from this step on."""
        lost, cut = self.disturbed.lost_rank, self.disturbed.cut_node
        if lost is not None and step >= lost[1]:
            self.slowness_PDI[self.ranks_PDI == lost[0]] = np.inf
        if cut is not None and step >= cut[1]:
            self._nodes[cut[0]] = np.inf
            self.network_PD = self._nodes[self.nodes_PDI].max(axis=2)

    def compute(self, stage: int, seconds: float) -> Floats:
        """Return the seconds of a computation on each rank of a stage, (D, I)."""
        own: Floats = seconds * self.slowness_PDI[stage]
        if self.disturbed.jitter:
            own = own * (1 + self._random.exponential(self.disturbed.jitter, own.shape))
        return own

    def between(self, stage: int, other: int, near_s: float, far_s: float) -> Floats:
        """Return the seconds of messages between two stages, which take `near_s` inside an NVLink domain."""
        crosses = (self._domains_PDI[stage] != self._domains_PDI[other]).any(axis=1)
        return np.where(crosses, far_s * np.maximum(self.network_PD[stage], self.network_PD[other]), near_s)

    def across(self, stage: int, num_cells: int) -> Floats:
        """Return the factors of collectives of groups of so many cells: each is as fast as its slowest member."""
        domains = self._domains_PDI[stage]
        crosses = meet(domains.max(axis=1), num_cells) != -meet(-domains.min(axis=1), num_cells)
        return np.where(crosses, meet(self.network_PD[stage], num_cells), 1.0)


def _factors(given: Mapping[int, float], count: int) -> Floats:
    factors = np.ones(count)
    for number, factor in given.items():
        factors[number] = factor
    return factors


def meet(times_D: Any, num_cells: int) -> Any:
    """Return for each replica the latest time of its group; groups are `num_cells` neighbors."""
    groups = times_D.reshape(-1, num_cells).max(axis=1)
    return np.repeat(groups, num_cells)

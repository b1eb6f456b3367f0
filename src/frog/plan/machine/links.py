"""A simulated slow network between the nodes of a run: the time that it adds to a collective.

The alpha-beta formula of `plan/network.py`, from the delay and the rate that the network was given. The measured time
of the collective on this machine, for the programs' own part, comes on top.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from frog.core.units import count
from frog.plan.layout import Layout
from frog.plan.network import Cost, collective_cost

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

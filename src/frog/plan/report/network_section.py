"""The report's section on a slow network between nodes: measured collectives compared with the alpha-beta formula."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from frog.core.runs import RecordedRun
from frog.core.runs.history import History, RankHistory
from frog.core.runs.launcher_schema import LauncherEndEvent, LaunchEvent, LinkFigures, LinkSettings
from frog.plan.links import Cost, collective_cost, payload_rate

_WHOLE = {"world": ("pp", "dp", "cp", "tp"), "data": ("dp", "cp"), "model": ("pp", "tp")}
"""Axes composed of others."""

Kind = tuple[str, str, int]
"""Kind of a collective: operation, axis, payload in bytes."""


@dataclass(frozen=True)
class MatchedCollective:
    """One collective of all its groups: on every rank of the world, at the same place of its program."""

    kind: Kind
    ready_ns: int
    """When the last rank began it."""
    end_ns: int
    """When the last rank had its result."""


def network_section(history: History) -> dict[str, Any] | None:
    """Return the section's data; None if the last launch had no network, or no collective used it."""
    network, counted = _launch_network(history.run)
    if network is None or not history.ranks:
        return None
    segment = len(history.segments) - 1
    ranks = {rank: own for rank, own in history.ranks.items() if segment in own.starts}
    starts = {rank: own.starts[segment] for rank, own in ranks.items()}
    places = {rank: start.place for rank, start in starts.items()}
    node_of = {rank: start.node_rank for rank, start in starts.items()}
    alpha_s = network.delay_s
    beta = payload_rate(network.rate_bits_per_s, network.mtu)
    rows = []
    for kind, times_s in _times(ranks, segment, node_of, places).items():
        op, axis, payload_bytes = kind
        groups = [[node_of[rank] for rank in group] for group in axis_groups(axis, places)]
        costs = [collective_cost(op, payload_bytes, groups, asks=asks) for asks in (True, False)]
        rows.append(_row(kind, times_s, costs, alpha_s, beta))
    if not rows:
        return None
    return {
        "rate_bits_per_s": network.rate_bits_per_s,
        "delay_s": alpha_s,
        "loss": network.loss,
        "beta_bytes_per_s": beta,
        "num_nodes": len(set(node_of.values())),
        "rows": sorted(rows, key=lambda row: -row["total_s"]),
        "counted": counted,
    }


def _launch_network(run: RecordedRun) -> tuple[LinkSettings | None, LinkFigures | None]:
    """Return the network of the last launch, and its final traffic, if the launcher reported it."""
    network = counted = None
    for event in run.launcher:
        if isinstance(event, LaunchEvent):
            network, counted = event.network, None
        elif isinstance(event, LauncherEndEvent):
            counted = event.network
    return network, counted


def axis_groups(axis: str, places: Mapping[int, Mapping[str, int]]) -> list[list[int]]:
    """Return the ranks of the world in the groups of an axis, each in order; empty if the axis is unknown."""
    along = _WHOLE.get(axis, (axis,))
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in sorted(places):
        place = places[rank]
        if axis != "world" and not set(along) <= place.keys():
            return []
        groups.setdefault(tuple((name, at) for name, at in place.items() if name not in along), []).append(rank)
    return list(groups.values()) if axis != "world" else [sorted(places)]


def _times(
    ranks: Mapping[int, RankHistory],
    segment: int,
    node_of: Mapping[int, int],
    places: Mapping[int, Mapping[str, int]],
) -> dict[Kind, list[float]]:
    """Return the seconds of each collective between nodes, by kind.

    Each is measured from when all ranks had arrived, and the previous collective was done, to its end: concurrent ones
    share the links, so each counts the time by which it ended later than the one before.
    """
    calls: dict[tuple[str, str, int, int], list[tuple[int, int, int]]] = {}
    for own in ranks.values():
        _gather(own, segment, calls)
    crossing = {axis for _, axis, _, _ in calls if _crosses(axis_groups(axis, places), node_of)}
    whole = [
        MatchedCollective((op, axis, own[0][0]), max(start for _, start, _ in own), max(end for _, _, end in own))
        for (op, axis, _, _), own in calls.items()
        if axis in crossing and len(own) == len(ranks)
    ]
    seconds: dict[Kind, list[float]] = {}
    before_ns = 0
    for call in sorted(whole, key=lambda call: call.end_ns):
        seconds.setdefault(call.kind, []).append((call.end_ns - max(call.ready_ns, before_ns)) / 1e9)
        before_ns = call.end_ns
    return seconds


def _gather(own: RankHistory, segment: int, calls: dict[tuple[str, str, int, int], list[tuple[int, int, int]]]) -> None:
    """Match a rank's collectives with those of others: the i-th of an operation and axis in a step is the same one."""
    reported, count = own.collectives, dict[tuple[str, str, int], int]()
    mine = np.flatnonzero(reported.segment == segment)
    for index in mine[np.argsort(reported.start_ns[mine], kind="stable")]:
        key = own.ops[reported.phase[index]], own.axes[reported.axis[index]], int(reported.step[index])
        count[key] = count.get(key, 0) + 1
        span = int(reported.micro[index]), int(reported.start_ns[index]), int(reported.end_ns[index])
        calls.setdefault((*key, count[key]), []).append(span)


def _crosses(groups: Sequence[Sequence[int]], node_of: Mapping[int, int]) -> bool:
    return any(len({node_of[rank] for rank in group}) > 1 for group in groups)


def _row(kind: Kind, times_s: list[float], costs: Sequence[Cost | None], alpha_s: float, beta: float) -> dict[str, Any]:
    measured_s = statistics.median(times_s)
    gloo, book = costs
    gloo_s = gloo.seconds(alpha_s, beta) if gloo else None
    return {
        "op": kind[0],
        "axis": kind[1],
        "payload_bytes": kind[2],
        "num": len(times_s),
        "total_s": sum(times_s),
        "measured_ms": 1e3 * measured_s,
        "book_ms": 1e3 * book.seconds(alpha_s, beta) if book else None,
        "gloo_ms": None if gloo_s is None else 1e3 * gloo_s,
        "num_delays": gloo.num_delays if gloo else None,
        "link_bytes": gloo.link_bytes if gloo else None,
        "ratio": measured_s / gloo_s if gloo_s else None,
    }

"""Judges the traffic on each link, and the shape that it forms. A pure function of byte counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from frog.measure.peers.findings import Finding
from frog.measure.peers.observed import Observed, Pair

Kind = Literal["ring", "star", "mesh", "two-way-ring", "doubling", "tree", "other"]

_LITTLE = 0.01
"""Fraction of the buffer: a link with less traffic carries greetings, not data."""
_MOST_MORE = 1.05
"""Allowed traffic, as a multiple of a ring's."""
_BESIDES = 4096
"""Bytes allowed for greetings and message headers."""


def ring_bytes(world: int, payload_bytes: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce: 2(n-1)/n of the buffer."""
    return 2 * (world - 1) / world * payload_bytes


def busiest(sent: Mapping[Pair, int]) -> tuple[int, int]:
    """Return the rank that sends or receives most, and its number of bytes."""
    counts: Counter[tuple[int, bool]] = Counter()
    for (i, j), num_bytes in sent.items():
        counts[i, True] += num_bytes
        counts[j, False] += num_bytes
    (rank, _), most = max(counts.items(), key=lambda item: item[1], default=((0, True), 0))
    return rank, most


def data_links(sent: Mapping[Pair, int], payload_bytes: int) -> dict[Pair, int]:
    """Return the links that carry more than the messages that open a connection."""
    return {pair: count for pair, count in sent.items() if count > _LITTLE * payload_bytes}


def ring_order(links: Mapping[Pair, int], world: int) -> list[int]:
    """Return the ranks in ring order, if each sends to one other and together they form one ring; else empty."""
    to = dict(links.keys())
    if len(links) != world or len(to) != world:
        return []
    order = [0]
    while to[order[-1]] not in order:
        order.append(to[order[-1]])
        if order[-1] not in to:
            return []
    return order if len(order) == world and to[order[-1]] == 0 else []


def shape_of(links: Mapping[Pair, int], world: int) -> tuple[Kind, str]:
    """Return the shape that the links form, and its description."""
    pairs = set(links)
    if order := ring_order(links, world):
        return "ring", "a ring, " + " → ".join(map(str, [*order, order[0]]))
    if hubs := [hub for hub in range(world) if pairs and all(hub in pair for pair in pairs)]:
        return "star", f"a star: everything passes through rank {hubs[0]}"
    if len(pairs) == world * (world - 1):
        return "mesh", "a mesh: every rank sends to every other"
    if pairs == {(r, (r + step) % world) for r in range(world) for step in (-1, 1)}:
        return "two-way-ring", "a ring in both directions"
    if pairs == {(r, r ^ 1 << k) for r in range(world) for k in range((world - 1).bit_length())}:
        return "doubling", "recursive doubling: rank r and rank r XOR 1, 2, 4 ..."
    if len({frozenset(pair) for pair in pairs}) == world - 1:
        return "tree", "a tree or a chain: " + _listed(links)
    return "other", "an unknown shape: " + _listed(links)


def _listed(links: Mapping[Pair, int]) -> str:
    return ", ".join(f"{i} → {j} {count:,}" for (i, j), count in sorted(links.items())) + " bytes"


def judge_shape(seen: Observed) -> Finding | None:
    """Check that the busiest rank moves no more than in a ring, within a few percent."""
    payload = seen.plan.calls[0].payload_bytes
    rank, most = busiest(seen.sent)
    ring = ring_bytes(seen.world, payload)
    if most <= _MOST_MORE * ring + _BESIDES:
        return None
    links = data_links(seen.sent, payload)
    kind, name = shape_of(links, seen.world)
    text = (
        f"world {seen.world}, {payload:,} bytes: rank {rank} moves {most:,} in one direction; in a ring each moves "
        f"2(n-1)/n of the buffer, {ring:,.0f}. The links form {name}."
    )
    ids: dict[Kind, str] = {"star": "through-one-rank", "ring": "whole-buffers"}
    return Finding(ids.get(kind, "more-bytes"), text)


def judge_connections(seen: Observed) -> Finding | None:
    """Check that connections are reused: there are far fewer on a link than calls."""
    calls = len(seen.plan.calls)
    (i, j), most = max(seen.connections.items(), key=lambda item: item[1], default=((0, 0), 0))
    if most <= max(2, calls // 2):
        return None
    text = f"world {seen.world}: rank {i} connected to rank {j} {most} times in a session of {calls} calls."
    return Finding("connection-per-call", text)

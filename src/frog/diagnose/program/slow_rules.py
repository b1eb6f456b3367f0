"""Find a rank that comes late to most collectives, from the times at which the ranks called them."""

from __future__ import annotations

import itertools
import statistics

from frog.diagnose.diagnosis import Diagnosis
from frog.diagnose.program.compare import members_of
from frog.diagnose.program.evidence import Evidence, Group, place
from frog.diagnose.program.lines import report_ranks

_LEAST_CALLS = 8
_SHARE = 0.7
"""Least share of the collectives to which a slow rank comes last."""
_LEAST_LATE_S = 0.02
_SHARE_OF_TIME, _MORE = 0.25, 4
"""Least part of the time during which the others wait for a slow rank, and how much more than for any other rank."""
_SHARE_OF_CALLS, _LEAST_OFTEN_S = 0.2, 0.01
"""Least share of the collectives to which it then comes late, and by how much."""
_LEAST_PART = 0.2
"""Least lateness, as a part of the time between two collectives."""


def slow_rank(evidence: Evidence) -> Diagnosis | None:
    """Report the rank that the others wait for, if one is late again and again."""
    groups = dict.fromkeys(call.group for rank in evidence.ranks.values() for call in rank.calls if not call.p2p)
    for group in groups:
        found = _in_group(evidence, group)
        if found is not None:
            return found
    return None


def _late_ns(rows: list[dict[int, int]], last: list[int], number: int) -> list[int]:
    """Return by how much a rank came after all others, for each collective to which it came last."""
    return [max(row.values()) - sorted(row.values())[-2] for row, who in zip(rows, last, strict=True) if who == number]


def _often_late(evidence: Evidence, group: Group, rows: list[dict[int, int]], last: list[int]) -> Diagnosis | None:
    """Report a rank that the others wait for during much of the time, though not at most collectives."""
    rows, last = rows[1:], last[1:]  # they start at different times
    late_ns = {number: _late_ns(rows, last, number) for number in rows[0]}
    slowest = max(late_ns, key=lambda number: sum(late_ns[number]))
    waited_ns, others_ns = sum(late_ns[slowest]), max(sum(late_ns[each]) for each in late_ns if each != slowest)
    span_ns = min(rows[-1].values()) - min(rows[0].values())
    times = sum(ns > _LEAST_OFTEN_S * 1e9 for ns in late_ns[slowest])
    if waited_ns < _SHARE_OF_TIME * span_ns or waited_ns < _MORE * others_ns or times < _SHARE_OF_CALLS * len(rows):
        return None
    rank = evidence.ranks[slowest]
    line = next((call.line for call in reversed(rank.calls) if call.group == group), None)
    return Diagnosis(
        "slow",
        f"the others waited for rank {slowest} during {100 * waited_ns / span_ns:.0f} % of the time: it came last to "
        f"{times} of {len(rows)} collectives of {group.label(evidence.world)}, by {waited_ns / 1e9 / times:.2f} s"
        + (f". It was most often seen at {rank.often}" if rank.often else ""),
        rank=slowest,
        node_rank=rank.node_rank,
        line=rank.often or place(line) or None,
        certain=False,
        outcome=_outcome(evidence, slowest),
        evidence=report_ranks(evidence, [slowest]),
        advice="compare its host with the others: other processes, clocks of its CPU or GPU, a slow disk, more data\n"
        "or work that only this rank does, such as saving",
    )


def _outcome(evidence: Evidence, number: int) -> str:
    if evidence.ranks[number].state == "ended":
        return "completed"
    return "running" if evidence.active else "failed"


def _in_group(evidence: Evidence, group: Group) -> Diagnosis | None:
    members = [number for number in members_of(evidence, group) if number in evidence.ranks]
    times = {
        number: {call.seq: call.created_ns for call in evidence.ranks[number].calls if call.group == group}
        for number in members
    }
    common = sorted(set.intersection(*(set(found) for found in times.values()))) if len(members) > 1 else []
    rows = [{number: ns for number in members if (ns := times[number][seq])} for seq in common]
    rows = [row for row in rows if len(row) == len(members)]
    if len(rows) < _LEAST_CALLS:
        return None
    last = [max(row, key=lambda number: row[number]) for row in rows]
    slowest = statistics.mode(last)
    late_ns = _late_ns(rows, last, slowest)
    between = statistics.median([min(b.values()) - min(a.values()) for a, b in itertools.pairwise(rows)])
    big = [ns for ns in late_ns if ns > max(_LEAST_LATE_S * 1e9, _LEAST_PART * between)]
    if len(big) < _SHARE * len(rows) / 2 or last.count(slowest) < _SHARE * len(rows):
        return _often_late(evidence, group, rows, last)
    hosts = {evidence.ranks[number].host for number in members}
    rank, late_s = evidence.ranks[slowest], statistics.median(big) / 1e9
    line = next((call.line for call in reversed(rank.calls) if call.group == group), None)
    skewed = len(hosts) > 1
    return Diagnosis(
        "slow",
        f"rank {slowest} comes last to {last.count(slowest)} of {len(rows)} collectives of "
        f"{group.label(evidence.world)}, by {late_s:.2f} s: the others wait for it"
        + (f". It was most often seen at {rank.often}" if rank.often else ""),
        rank=slowest,
        node_rank=rank.node_rank,
        line=rank.often or place(line) or None,
        certain=not skewed,
        outcome=_outcome(evidence, slowest),
        evidence=report_ranks(evidence, [slowest]),
        advice="compare its host with the others: other processes, clocks of its CPU or GPU, a slow disk, more data\n"
        + (
            "the hosts' clocks may differ, which looks the same" if skewed else "`py-spy top --pid PID` shows its lines"
        ),
    )

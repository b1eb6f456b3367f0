"""Find a rank that comes late again and again, from the times at which the ranks called their collectives."""

from __future__ import annotations

from frog.diagnose.diagnosis import Diagnosis
from frog.diagnose.program.compare import members_of
from frog.diagnose.program.evidence import Evidence, Group, place
from frog.diagnose.program.lines import report_ranks

_LEAST_CALLS = 8
_LATE_NS = 20_000_000
"""A rank that comes last by less is not late."""
_LEAST_TIMES, _SHARE_OF_CALLS = 4, 0.1
"""Fewest collectives to which a slow rank comes late, and their least share: a step may have many collectives."""
_LOST, _SURELY_LOST = 0.3, 0.4
"""Least parts of the time during which the others wait for it: ranks on busy cores wait for each other for less."""
_MORE = 4
"""How much more they wait for it than for any other rank."""


def slow_rank(evidence: Evidence) -> Diagnosis | None:
    """Report the rank that the others wait for, if one is late again and again."""
    groups = dict.fromkeys(call.group for rank in evidence.ranks.values() for call in rank.calls if not call.p2p)
    found = (_in_group(evidence, group, _rows(evidence, group)) for group in groups)
    return next((one for one in found if one is not None), None)


def _rows(evidence: Evidence, group: Group) -> list[dict[int, int]]:
    """Return the times at which the members called each collective that all of them called, but the first.

    The ranks come to the first one when they have started, at different times.
    """
    members = [number for number in members_of(evidence, group) if number in evidence.ranks]
    times = {
        number: {call.seq: call.created_ns for call in evidence.ranks[number].calls if call.group == group}
        for number in members
    }
    common = sorted(set.intersection(*(set(found) for found in times.values()))) if len(members) > 1 else []
    rows = [{number: ns for number in members if (ns := times[number][seq])} for seq in common]
    return [row for row in rows if len(row) == len(members)][1:]


def _in_group(evidence: Evidence, group: Group, rows: list[dict[int, int]]) -> Diagnosis | None:
    if len(rows) < _LEAST_CALLS - 1:
        return None
    late_ns = {number: _late_ns(rows, number) for number in rows[0]}
    slowest = max(late_ns, key=lambda number: sum(late_ns[number]))
    waited_ns, others_ns = sum(late_ns[slowest]), max(sum(late_ns[each]) for each in late_ns if each != slowest)
    lost = waited_ns / (max(rows[-1].values()) - min(rows[0].values()) + 1)
    times = len(late_ns[slowest])
    if lost < _LOST or waited_ns < _MORE * others_ns or times < max(_LEAST_TIMES, _SHARE_OF_CALLS * len(rows)):
        return None
    rank = evidence.ranks[slowest]
    line = next((call.line for call in reversed(rank.calls) if call.group == group), None)
    skewed = len({evidence.ranks[number].host for number in rows[0]}) > 1
    return Diagnosis(
        "slow",
        f"the others waited for rank {slowest} during {100 * lost:.0f} % of the time: it came late to {times} of "
        f"{len(rows)} collectives of {group.label(evidence.world)}, by {waited_ns / 1e9 / times:.2f} s"
        + (f". It was most often seen at {rank.often}" if rank.often else ""),
        rank=slowest,
        node_rank=rank.node_rank,
        line=rank.often or place(line) or None,
        certain=not skewed and lost >= _SURELY_LOST,
        outcome="completed" if rank.state == "ended" else "running" if evidence.active else "failed",
        evidence=report_ranks(evidence, [slowest]),
        advice="compare its host with the others: other processes, clocks of its CPU or GPU, a slow disk, more data, "
        "or work that only this rank does, such as saving\n"
        + (
            "the hosts' clocks may differ, which looks the same" if skewed else "`py-spy top --pid PID` shows its lines"
        ),
    )


def _late_ns(rows: list[dict[int, int]], number: int) -> list[int]:
    """Return by how much a rank came after all others, for each collective to which it came late."""
    behind = [row[number] - max(ns for other, ns in row.items() if other != number) for row in rows]
    return [ns for ns in behind if ns > _LATE_NS]

"""Rules about ranks that wait in collectives of different groups, each for another one."""

from __future__ import annotations

from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_partings import comes_later, stack_of
from frog.observe.diagnose.program.compared_calls import Difference, is_unusual, usual_after
from frog.observe.diagnose.program.evidence import Call, Evidence, RankEvidence, place, same_line
from frog.observe.diagnose.program.parting_words import way_past
from frog.observe.diagnose.program.rank_reports import after_error, describe_call, they_wait
from frog.observe.diagnose.program.wait_reports import base_of_wait, who_waits


def other_group(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find two groups whose collectives ranks call in different orders, so that each waits for the other."""
    for number in found.absent:
        rank = evidence.ranks[number]
        pending = [call for call in rank.pending if call.group != found.group and not call.p2p]
        if pending and (circle := _circle(evidence, found)) is not None:
            return circle
        if pending and (skipped := _skipped_in_other_group(evidence, found, number, pending[0])) is not None:
            return skipped
        if pending:
            return _opposite(evidence, found, number, pending[0])
    return None


def _circle(evidence: Evidence, found: Difference) -> Diagnosis | None:
    """Find a circle of three or more ranks, each of which waits for the next in a collective of another group.

    If two of them left their habit, they called the groups in another order: one alone would have skipped a call.
    """
    waits: dict[int, Call] = {}
    number: int | None = min(found.calls)
    while number is not None and number not in waits:
        pending = [call for call in evidence.ranks[number].pending if not call.p2p]
        if not pending:
            return None
        waits[number] = pending[0]
        number = _missing(evidence, pending[0])
    if number is None:
        return None
    circle = list(waits)[list(waits).index(number) :]
    odd = [each for each in circle if is_unusual(_calls_before(evidence.ranks[each], waits[each]), waits[each])]
    if len(circle) < 3 or not 2 <= len(odd) < len(circle):
        return None
    steps = [
        f"rank {each} in {describe_call(evidence, waits[each])} for rank {awaited}"
        for each, awaited in zip(circle, [*circle[1:], circle[0]], strict=True)
    ]
    there, first = next(waits[each] for each in circle if each not in odd), min(odd)
    return base_of_wait(evidence, found, first).with_more(
        fault="order",
        certain=False,
        finding=f"{span(sorted(circle))} wait for each other in a circle: {'; '.join(steps)}. {span(sorted(odd))} "
        "called another group first than before: the order of the groups differs between the ranks",
        line=place(waits[first].line) or None,
        peer_line=place(there.line) or None,
        advice="ranks must call the collectives of overlapping groups in the same order",
    )


def _missing(evidence: Evidence, call: Call) -> int | None:
    """Return a rank that has not called a collective in which others wait."""
    for number in call.group.members:
        rank = evidence.ranks.get(number)
        if rank is not None and not any((each.group, each.seq) == (call.group, call.seq) for each in rank.calls):
            return number
    return None


def _calls_before(rank: RankEvidence, call: Call) -> list[Call]:
    """Return the calls of a rank before one, in the order of their times."""
    earlier = [each for each in rank.calls if (each.created_ns or 0) < (call.created_ns or 0)]
    return sorted(earlier, key=lambda each: each.created_ns or 0)


def _opposite(evidence: Evidence, found: Difference, number: int, other: Call) -> Diagnosis:
    """Report two groups called in opposite orders. Of the ranks that belong to both, the smaller side is odd."""
    first = [each for each in found.calls if each in other.group.members or not other.group.members]
    second = [each for each in found.absent if _waits_in(evidence.ranks[each], other)]
    odd, at, there = number, other, found.call
    if 0 < len(first) < len(second):
        odd, at, there = first[0], found.call, other
    return base_of_wait(evidence, found, odd).with_more(
        fault="order",
        certain=bool(first) and len(first) != len(second) and evidence.ranks[number].state != "ended",
        finding=f"{who_waits(evidence, found)}; {they_wait(second)} in {describe_call(evidence, other)} instead",
        line=place(at.line) or None,
        peer_line=place(there.line) or None,
        advice="ranks must call the collectives of overlapping groups in the same order",
    )


def _waits_in(rank: RankEvidence, call: Call) -> bool:
    return any((each.group, each.seq) == (call.group, call.seq) for each in rank.pending)


def _skipped_in_other_group(evidence: Evidence, found: Difference, absent: int, pending: Call) -> Diagnosis | None:
    """Find a rank that called another group's collective without the one that it called there before."""
    waits = next(iter(found.calls))
    for number, call, missing in ((waits, found.call, pending), (absent, pending, found.call)):
        before = _calls_before(evidence.ranks[number], call)
        if not (is_unusual(before, call) and any(same_line(each.line, missing.line) for each in usual_after(before))):
            continue
        error = after_error(evidence.ranks[number])
        if not error and comes_later(stack_of(call), stack_of(missing)):
            return base_of_wait(evidence, found, number).with_more(
                fault="order",
                certain=False,
                line=place(call.line) or None,
                peer_line=place(missing.line) or None,
                finding=f"rank {number} waits in {describe_call(evidence, call)}; others wait in "
                f"{describe_call(evidence, missing)}, which it called first before, and now calls afterwards: the "
                f"order of the groups differs{way_past(missing, call)}",
                advice="ranks must call the collectives of overlapping groups in the same order",
            )
        return base_of_wait(evidence, found, number).with_more(
            fault="skipped",
            certain=bool(error),
            line=place(call.line) or None,
            peer_line=place(missing.line) or None,
            finding=f"rank {number} waits in {describe_call(evidence, call)}: it skipped {missing.op} at "
            f"{place(missing.line)}, in which others wait and which it called before{error or way_past(missing, call)}",
            advice="a rank that catches an error must still call the collectives of that step, or all ranks must agree "
            "to skip it: all-reduce a flag first",
        )
    return None

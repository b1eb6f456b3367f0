"""Rules about ranks that parted where a function is given away, at a line that calls another function, or too often.

The source tells, by code_uses.py.
"""

from __future__ import annotations

import re

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_blocks import text_of
from frog.observe.diagnose.program.code_partings import stack_of
from frog.observe.diagnose.program.code_uses import differing_callees, repeats_in_a_line, used_under
from frog.observe.diagnose.program.compared_calls import Difference
from frog.observe.diagnose.program.condition_sources import callee_sources
from frog.observe.diagnose.program.evidence import Evidence, place, same_line
from frog.observe.diagnose.program.library_partings import lines_with, user_files
from frog.observe.diagnose.program.mismatch_sides import Sides, base_of_mismatch, is_same, last_common, they_differ
from frog.observe.diagnose.program.parting_words import AGREE_FIRST, EVEN_ROUNDS, OUT_OF_BRANCH

_MOST_LINE = 90


def met_another_way(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find ranks whose last calls met although other lines led to each: there they had parted already."""
    if not sides.odd_before or not sides.other_before:
        return None
    odd, other = sides.odd_before[-1], sides.other_before[-1]
    mine, others = stack_of(odd), stack_of(other)
    pairs = list(zip(mine, others, strict=False))
    differing = [(a, b) for a, b in pairs if (a.file, a.line) != (b.file, b.line)]
    if not odd.callers or not other.callers or not same_line(odd.line, other.line) or not differing:
        return None
    guard = used_under(mine, (frame for call in sides.other_before for frame in call.callers))
    callees = differing_callees(mine, others)
    if guard is None and callees is None:
        return None
    cause = (
        f"only some ranks pass {guard}"
        if guard is not None or callees is None
        else f"line {callees[0].line} called {callees[1]} on rank {sides.odd} and {callees[2]} on rank {sides.other}"
        f"{callee_sources(callees[0])}"
    )
    mine_at, others_at = differing[0]
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="branch",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: the {odd.op} before that came from other lines, rank "
        f"{sides.odd}'s from {place(mine_at)} and rank {sides.other}'s from {place(others_at)}: {cause}",
        advice=OUT_OF_BRANCH,
    )


def repeated_in_a_line(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a line that calls a function several times without a loop, as `map` does, but not as often on each rank."""
    repeats = repeats_in_a_line(stack_of(sides.other_call), stack_of(sides.odd_call), last_common(sides))
    if repeats is None:
        return None
    line, text = repeats
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="batches",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: rank {sides.odd} has left line {line.line} (`{text}`), in "
        f"which rank {sides.other} makes one more call: how often it calls differs between the ranks",
        advice=EVEN_ROUNDS,
    )


def dispatched(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a line that both ranks are at, and from which they came to different functions."""
    parted = differing_callees(stack_of(sides.odd_call), stack_of(sides.other_call))
    if parted is None:
        return None
    line, odd, other = parted
    text = text_of(line).strip()[:_MOST_LINE]
    return base_of_mismatch(evidence, found, sides).with_more(
        fault="branch",
        certain=False,
        finding=f"{they_differ(evidence, found, sides)}: line {line.line} (`{text}`) called "
        f"{odd} on rank {sides.odd} and {other} on rank {sides.other}{callee_sources(line)}",
        advice=AGREE_FIRST,
    )


_NEW_GROUP = re.compile(r"\bnew_group\(")


def of_swapped_groups(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis | None:
    """Find a rank that made, in this group, the call that the others made in another group of the same ranks.

    Groups get their names in the order in which a rank creates them: that order differs.
    """
    mine, others = (evidence.ranks[number].by_group() for number in (sides.odd, sides.other))
    for group, calls in others.items():
        if group.members != found.group.members or group == found.group:
            continue
        there = next((call for call in calls if call.seq == found.seq), None)
        own = next((call for call in mine.get(group, []) if call.seq == found.seq), None)
        if there is None or there.line is None or is_same(there, sides.other_call):
            continue
        if is_same(there, sides.odd_call) and (own is None or is_same(own, sides.other_call)):
            lines = lines_with(user_files(evidence), _NEW_GROUP)
            where = "; the program calls new_group at " + " and ".join(map(place, lines[:3])) if lines else ""
            return base_of_mismatch(evidence, found, sides).with_more(
                fault="groups",
                certain=False,
                finding=f"{they_differ(evidence, found, sides)}: rank {sides.other} made the call of rank {sides.odd} "
                f"in {group.label(evidence.world)}, another group of the same ranks: they probably created these "
                f"groups in another order{where}",
                advice="all ranks must call new_group in the same order, also for groups of the same ranks: go through "
                "the groups of all ranks in a sorted order, not through a rank's own first",
            )
    return None

"""The two sides of a collective at which ranks met with different calls: the one that differs, and the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from frog.core.runs.observed import CodeLine
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.program.code_partings import stack_of
from frog.observe.diagnose.program.compared_calls import Difference, is_unusual
from frog.observe.diagnose.program.evidence import Call, Evidence, at_place, place, same_line
from frog.observe.diagnose.program.parting_words import begins_anew
from frog.observe.diagnose.program.rank_reports import describe_call, report_ranks


@dataclass(frozen=True)
class Sides:
    """The rank that differs, and one of the others."""

    odd: int
    other: int
    odd_calls: list[Call]
    """From the difference on."""
    other_calls: list[Call]
    odd_before: list[Call]
    other_before: list[Call]
    tie: bool
    """True if no side has a majority."""

    @property
    def odd_call(self) -> Call:
        return self.odd_calls[0]

    @property
    def other_call(self) -> Call:
        return self.other_calls[0]

    @property
    def is_short(self) -> bool:
        """True if a rank called nothing after the difference."""
        return min(len(self.odd_calls), len(self.other_calls)) < 2

    def swapped(self) -> Sides:
        return Sides(
            self.other, self.odd, self.other_calls, self.odd_calls, self.other_before, self.odd_before, self.tie
        )


def sides_of(evidence: Evidence, found: Difference) -> Sides:
    """Choose the odd rank: of the smaller side; in a tie one that called something new, else the higher rank."""
    counts = Counter(_side(found, call) for call in found.calls.values())
    for number, rank in evidence.ranks.items():  # a crashed rank has no record, but was seen at a line
        if number not in found.calls and rank.line is not None and not rank.calls:
            at = {_side(found, call) for call in found.calls.values() if same_line(call.line, rank.line)}
            at = at or {_side(found, call) for call in found.calls.values() if call.line is None}
            counts.update(at if len(at) == 1 else ())
    right = max(counts, key=lambda side: (counts[side], side == _side(found, found.calls[min(found.calls)])))
    tie = counts[right] * 2 <= sum(counts.values())
    unusual = {
        _side(found, call) for number, call in found.calls.items() if _calls_something_new(evidence, number, call)
    }
    if tie and len(counts) == 2 and unusual == {right}:
        right = next(side for side in counts if side != right)
    odd = next(number for number, call in found.calls.items() if _side(found, call) != right)
    other = next(number for number, call in found.calls.items() if _side(found, call) == right)
    of = {number: evidence.ranks[number].by_group()[found.group] for number in (odd, other)}
    after = {number: [call for call in calls if call.seq >= found.seq] for number, calls in of.items()}
    before = {number: [call for call in calls if call.seq < found.seq] for number, calls in of.items()}
    return Sides(odd, other, after[odd], after[other], before[odd], before[other], tie)


def _side(found: Difference, call: Call) -> tuple[object, ...]:
    """Return in what the sides of a difference differ."""
    return (*form_of(call), line_of(call)) if found.kind == "line" else form_of(call)


def _calls_something_new(evidence: Evidence, number: int, call: Call) -> bool:
    calls = evidence.ranks[number].by_group()[call.group]
    return bool(is_unusual([each for each in calls if each.seq < call.seq], call))


def form_of(call: Call) -> tuple[object, ...]:
    """Return what must agree between ranks."""
    return call.op, call.elements, call.dtypes


def is_same(one: Call, other: Call) -> bool:
    """True if two calls have the same form, and come from the same line as far as known."""
    is_known = one.line is not None and other.line is not None
    return form_of(one) == form_of(other) and (not is_known or same_line(one.line, other.line))


def base_of_mismatch(evidence: Evidence, found: Difference, sides: Sides) -> Diagnosis:
    """Return the fields of every diagnosis of a mismatch."""
    rest = [number for number in found.calls if number not in (sides.odd, sides.other)]
    rank = evidence.ranks[sides.odd]
    return Diagnosis(
        "stuck",
        "",
        rank=sides.odd,
        node_rank=rank.node_rank,
        line=place(sides.odd_call.line) or None,
        peer_line=place(sides.other_call.line) or None,
        collective=describe_call(evidence, sides.other_call),
        evidence=(
            *(_call_line(evidence, number, found.calls[number]) for number in (sides.odd, sides.other, *rest[:6])),
            *report_ranks(evidence, [sides.odd, sides.other], waits=False),
        ),
    )


def _call_line(evidence: Evidence, number: int, call: Call) -> str:
    return note(call.created_ns, f"rank {number}", f"called {describe_call(evidence, call)}", call.source)


def they_differ(evidence: Evidence, found: Difference, sides: Sides) -> str:
    """Return the sentence about both sides."""
    at = at_place(sides.odd_call.line)
    there = at_place(sides.other_call.line)
    side = _side(found, sides.other_call)
    others = sorted(number for number, call in found.calls.items() if _side(found, call) == side)
    where = "comes from different lines" if found.kind == "line" else "differs"
    return (
        f"collective {found.seq} of {found.group.label(evidence.world)} {where}: rank {sides.odd} called "
        f"{sides.odd_call}{at}, {span(others)} called {sides.other_call}{there}"
    )


def line_of(call: Call) -> tuple[str, int] | None:
    """Return the file and the line of a call; None if they are unknown."""
    return (call.line.file, call.line.line) if call.line is not None else None


def last_common(sides: Sides) -> tuple[CodeLine, ...]:
    """Return the lines of the last call that both sides made; one of the records may lack some."""
    if begins_anew(sides.other_before, sides.other_call):
        return ()
    stacks = [stack_of(before[-1]) for before in (sides.odd_before, sides.other_before) if before]
    return max(stacks, key=len, default=())

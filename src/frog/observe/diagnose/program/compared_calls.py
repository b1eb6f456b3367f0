"""Collectives compared: by number between the members of a group, and with the same rank's own earlier calls.

A collective's number counts the calls within its group, so that equal numbers meet. Records are rings: a rank's first
number may be larger than another's. A rank that called nothing at a number is absent only if a record of it exists;
without one it is unknown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from frog.observe.diagnose.program.evidence import Call, Evidence, Group, RankEvidence, same_line

_UNEVEN = ("all_to_all", "alltoall", "send", "recv")
"""Operations whose sizes may differ between ranks."""
_ROOTED = ("gather", "scatter", "_gather", "_scatter")
"""Operations in which one rank's sizes may differ from the others'."""


@dataclass(frozen=True)
class Difference:
    """The first collective of a group at which its members differ."""

    group: Group
    seq: int
    kind: str
    """op, size, dtype or absent; line: equal calls from different lines, after which the ranks are out of step."""
    calls: dict[int, Call]
    absent: tuple[int, ...] = ()
    """Members that are known not to have called it."""
    unknown: tuple[int, ...] = ()
    """Members without a record."""

    @property
    def call(self) -> Call:
        return next(iter(self.calls.values()))

    @property
    def began_ns(self) -> int:
        """When the first rank called it."""
        return min((call.created_ns for call in self.calls.values() if call.created_ns), default=0)


def differences(evidence: Evidence) -> list[Difference]:
    """Return the first difference of each group, in order of time."""
    by_rank = {number: rank.by_group() for number, rank in evidence.ranks.items()}
    groups = dict.fromkeys(group for calls in by_rank.values() for group in calls)
    firsts = [_first_difference(evidence, group, by_rank) for group in groups]
    known = [difference for difference in firsts if difference is not None]
    return sorted(known, key=lambda difference: (difference.kind == "absent", difference.began_ns))


def members_of(evidence: Evidence, group: Group) -> list[int]:
    """Return the ranks of a group: all that called something in it, if torch did not name them."""
    if group.members:
        return list(group.members)
    called = [number for number, rank in evidence.ranks.items() if any(call.group == group for call in rank.calls)]
    return sorted(called)


def _first_difference(
    evidence: Evidence, group: Group, by_rank: dict[int, dict[Group, list[Call]]]
) -> Difference | None:
    members = members_of(evidence, group)
    # A lookup hashes all members, so ranks without a record are left out of it.
    calls = {number: by_rank[number].get(group, []) if number in by_rank else [] for number in members}
    at = {number: {call.seq: call for call in made} for number, made in calls.items()}
    firsts = [min(by_seq) for by_seq in at.values() if by_seq]
    if len(members) < 2 or not firsts:
        return None
    last = max(max(by_seq) for by_seq in at.values() if by_seq)
    for seq in range(max(min(firsts), last - 100_000), last + 1):
        here = {number: by_seq[seq] for number, by_seq in at.items() if seq in by_seq}
        kind = _kind_of_difference(here)
        if kind is not None:
            return _shift(group, at, seq) or Difference(group, seq, kind, here)
        missing = [number for number in members if number not in here]
        absent = tuple(n for n in missing if here and _never_called(evidence.ranks.get(n), group, seq))
        never = set(absent)
        unknown = tuple(n for n in missing if n not in never and not at[n])
        if (absent or unknown) and here and not any(_is_over(evidence, n, call) for n, call in here.items()):
            return _shift(group, at, seq) or Difference(group, seq, "absent", here, absent, unknown)
    return None


# ---- equal calls from different lines, as of a rank that is one call ahead -------------------------------------------

_MOST_SHIFT = 8
"""Most calls by which a rank that is out of step may be ahead."""


def _shift(group: Group, at: dict[int, dict[int, Call]], until: int) -> Difference | None:
    """Return where ranks first called from different lines, if from there on they are out of step until a difference.

    Calls of equal size meet whatever lines they come from: a barrier ends with any other barrier. Ranks that call from
    lines of their own and then from the same lines again are in step.
    """
    begin = max((min(calls) for calls in at.values() if calls), default=until)
    for seq in range(begin, until):
        here = {number: calls[seq] for number, calls in at.items() if seq in calls}
        first = next(iter(here))
        for number in list(here)[1:]:
            if _differ_in_line(here[first], here[number]) and _are_out_of_step(at[first], at[number], seq):
                return Difference(group, seq, "line", here)
    return None


def _differ_in_line(one: Call, other: Call) -> bool:
    return one.line is not None and other.line is not None and not same_line(one.line, other.line)


def _are_out_of_step(one: dict[int, Call], other: dict[int, Call], seq: int) -> bool:
    """True if one rank's calls from a number on are the other's from a later number on, and not from the same."""
    mine, others = ([calls[n] for n in sorted(calls) if n >= seq] for calls in (one, other))
    if len(mine) == len(others) and not any(map(_differ_in_line, mine[1:], others[1:])):
        return False
    return any(
        len(ahead) > shift and all(map(_is_same_call, ahead[shift:], behind))
        for ahead, behind in ((mine, others), (others, mine))
        for shift in range(1, _MOST_SHIFT + 1)
    )


def _is_same_call(one: Call, other: Call) -> bool:
    return (one.op, one.elements, one.dtypes) == (other.op, other.elements, other.dtypes) and same_line(
        one.line, other.line
    )


def _is_over(evidence: Evidence, number: int, call: Call) -> bool:
    """True if a collective completed, by its own record or by the rank's later counts."""
    return call.done or evidence.ranks[number].completed.get(call.group, 0) >= call.seq


def _never_called(rank: RankEvidence | None, group: Group, seq: int) -> bool:
    """True if a rank's record shows that it did not reach a collective."""
    if rank is None:
        return False
    own = [call.seq for call in rank.calls if call.group == group and not call.p2p]
    if own:
        return max(own) < seq and rank.enqueued.get(group, 0) < seq
    if group in rank.enqueued:
        return rank.enqueued[group] < seq
    return rank.has_calls


def _kind_of_difference(here: dict[int, Call]) -> str | None:
    """Return how the calls at one number differ; None if they match, or only one is known."""
    calls = list(here.values())
    if len(calls) < 2:
        return None
    first = calls[0]
    if any(call.op != first.op for call in calls):
        return "op"
    if not first.op.lstrip("_").startswith(_UNEVEN):
        sizes = Counter(_matched_size(call) for call in calls if call.elements is not None)
        rooted = first.op in _ROOTED and min(sizes.values(), default=0) == 1
        if len(sizes) > 1 and not rooted:
            return "size"
    if len({call.dtypes for call in calls if call.dtypes}) > 1 and first.op not in _ROOTED:
        return "dtype"
    return None


def _matched_size(call: Call) -> object:
    """Return what must agree. gloo and NCCL move elements: tensors of other shapes but as many elements match."""
    return call.elements


# ---- a rank's calls and what it called before, as the steps of a loop repeat -----------------------------------------


def usual_after(before: list[Call]) -> list[Call]:
    """Return the calls that followed, earlier, a call like the last one; the latest of each form."""
    if not before:
        return []
    last = _form_and_line(before[-1])
    return list(
        {
            _form_and_line(after): after for call, after in itertools.pairwise(before) if _form_and_line(call) == last
        }.values()
    )


def is_unusual(before: list[Call], call: Call) -> bool | None:
    """True if a rank calls something else than each time before; None if this place is new."""
    usual = usual_after(before)
    return _form_and_line(call) not in {_form_and_line(each) for each in usual} if usual else None


def _form_and_line(call: Call) -> tuple[object, ...]:
    line = (call.line.file, call.line.line) if call.line is not None else None
    return call.op, call.elements, call.dtypes, line

"""Rules about stacks alone, such as those of `py-spy dump`: which ranks are in a collective, which are elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from frog.observe.diagnose.diagnosis import Diagnosis, span
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, place
from frog.observe.diagnose.program.places import collective_frames
from frog.observe.diagnose.program.rank_reports import RECORD_COLLECTIVES, report_ranks, they_wait

_MORE = f"flight-recorder dumps of all ranks show the collectives before ({RECORD_COLLECTIVES})"


@dataclass(frozen=True)
class _Side:
    """Ranks that are at the same line."""

    ranks: list[int]
    op: str
    """The function of torch.distributed in which they are; empty if they are in none."""
    at: str
    doing: str
    """The innermost frame, if it is not the user's."""

    def __str__(self) -> str:
        if self.op:
            return f"{they_wait(self.ranks)} in {self.op} at {self.at}"
        return f"{span(self.ranks)} {'is' if len(self.ranks) == 1 else 'are'} at {self.at}{self.doing}"


def stacks_apart(evidence: Evidence) -> Diagnosis | None:
    """Compare where the ranks are, if nothing but their stacks is known."""
    ranks = {number: rank for number, rank in evidence.ranks.items() if rank.stack and rank.seen_ns is None}
    if len(ranks) < 2 or any(rank.has_calls or rank.calls for rank in evidence.ranks.values()):
        return None
    sides = _sides(ranks)
    inside, outside = [side for side in sides if side.op], [side for side in sides if not side.op]
    if len(sides) == 1:
        return _together(evidence, sides[0]) if inside else None
    odd = min(outside if inside and outside else sides, key=lambda side: (len(side.ranks), side.ranks))
    others = [side for side in sides if side is not odd]
    if not inside and len(others[0].ranks) == len(odd.ranks):
        return None  # each rank is at a line of its own, as in any running program
    where = "; ".join(map(str, [*others[:3], odd]))
    base = _base(evidence, odd, others[0])
    if odd.op:
        return base.with_more(
            fault="order",
            finding=where,
            advice="ranks of a group must call the same collectives in the same order: look for a condition that only "
            f"{span(odd.ranks)} {'meets' if len(odd.ranks) == 1 else 'meet'}\n{_MORE}",
        )
    them = "it" if len(odd.ranks) == 1 else "them"
    return base.with_more(
        fault="blocked",
        finding=where + (f", outside torch.distributed: the others probably wait for {them}" if inside else ""),
        advice=f"look at what that line waits for or computes: every rank must reach the collective\n{_MORE}",
    )


def _together(evidence: Evidence, side: _Side) -> Diagnosis:
    return _base(evidence, side, side).with_more(
        rank=None,
        finding=f"all {len(side.ranks)} ranks with a stack wait in {side.op} at {side.at}: a rank without a stack "
        "here, the network or a device keeps them waiting",
        advice=f"take the stacks of all ranks at the same time\n{_MORE}",
    )


def _base(evidence: Evidence, odd: _Side, others: _Side) -> Diagnosis:
    return Diagnosis(
        "stuck",
        "",
        rank=odd.ranks[0],
        line=odd.at or None,
        peer_line=others.at or None,
        certain=False,
        evidence=report_ranks(
            evidence, [*odd.ranks, *(number for number in evidence.ranks if number not in odd.ranks)]
        ),
    )


def _sides(ranks: dict[int, RankEvidence]) -> list[_Side]:
    """Return the ranks by the function and line at which they are, the most ranks first."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, rank in sorted(ranks.items()):
        found.setdefault((_collective(rank), place(rank.line or rank.stack[0])), []).append(number)
    sides = [_Side(members, op, at, _doing(ranks[members[0]])) for (op, at), members in found.items()]
    return sorted(sides, key=lambda side: -len(side.ranks))


def _collective(rank: RankEvidence) -> str:
    """Return the function of torch.distributed that the user's code called, if the rank is in one."""
    inside = collective_frames(rank.stack)
    return inside[-1].function if inside else ""


def _doing(rank: RankEvidence) -> str:
    inside = rank.stack[0]
    return f" (in {inside.function} of {place(inside).partition(' ')[0]})" if inside != rank.line else ""

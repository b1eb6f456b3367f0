"""Rules about ranks that wait, as their stacks show: while they join or form a group, or if nothing else is known."""

from __future__ import annotations

from dataclasses import dataclass

from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.code_lines import collective_frames
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, at_place, place
from frog.observe.diagnose.program.outside_waits import advice_on_wait, polling_loop, waits_outside
from frog.observe.diagnose.program.rank_reports import RECORD_COLLECTIVES, describe_inside, report_ranks, they_wait

_TORCH_DISTRIBUTED = "torch/distributed/"


def joined_without(evidence: Evidence) -> Diagnosis | None:
    """Find the rank that does not come to where all others wait for it, inside torch.distributed."""
    ranks = evidence.ranks
    waiting = sorted(number for number, rank in ranks.items() if _waits_inside_torch(rank))
    elsewhere = sorted(ranks.keys() - waiting)
    if not evidence.hung or not waiting or not elsewhere or any(ranks[number].pending for number in waiting):
        return None
    odd, other = ranks[elsewhere[0]], ranks[waiting[0]]
    where = f"{other.stack[0].function}" + at_place(other.line)
    waits = f"{they_wait(waiting)} in {where}"
    fault, doing, advice = reason_of_absence(odd)
    return Diagnosis(
        fault,
        f"{waits}; {span(elsewhere)} {doing}",
        rank=elsewhere[0],
        node_rank=odd.node_rank,
        line=place(odd.line) or None,
        peer_line=place(other.line) or None,
        certain=fault == "ended" or odd.stopped,
        evidence=report_ranks(evidence, [*elsewhere, *waiting]),
        advice=advice,
    )


def _waits_inside_torch(rank: RankEvidence) -> bool:
    inside = rank.stack[0].file.replace("\\", "/") if rank.stack else ""
    return rank.state == "running" and not rank.stopped and rank.exit_code != 0 and _TORCH_DISTRIBUTED in inside


def reason_of_absence(rank: RankEvidence) -> tuple[str, str, str]:
    """Return the fault of a rank for which others wait, what it does, and advice."""
    at = at_place(rank.line)
    if rank.state == "ended" or rank.exit_code == 0:
        return "ended", "ended without an error", "look for a return or sys.exit(0) that only this rank reaches"
    if rank.stopped:
        return "stop", f"was stopped{at}", "a stopped process (SIGSTOP, a debugger), or one blocked in the kernel"
    if rank.cpu_busy:
        loop = waits_outside(rank) if polling_loop(rank) is not None else ""
        return "busy", f"was still computing{at}{loop}", "an endless loop, or long work for which the others wait"
    return (
        "blocked",
        f"was{at or ' elsewhere'}, and did not compute{waits_outside(rank)}",
        advice_on_wait(rank) or "look for a lock, a download, or a slow disk",
    )


def none_inside(evidence: Evidence) -> Diagnosis | None:
    """Find ranks of which none computes, and none waits in torch.distributed: each waits for something else."""
    ranks = evidence.ranks
    is_over = evidence.hung or not (evidence.active or evidence.has_failed)
    if not is_over or len(ranks) < 2 or len(ranks) < len(evidence.world) or not all(map(_idles, ranks.values())):
        return None
    sides = _ranks_by_line(ranks)
    odd, other = ranks[sides[-1].ranks[0]], ranks[sides[0].ranks[0]]
    were = {side.at: f"{span(side.ranks)} {'was' if len(side.ranks) == 1 else 'were'}" for side in sides}
    at = [f"{were[side.at]} at {side.at}{waits_outside(ranks[side.ranks[0]])}" for side in sides[:3]]
    return Diagnosis(
        "blocked",
        f"no rank waits in a collective, and none computed: {'; '.join(at)}",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(odd.line) or None,
        peer_line=place(other.line) or None,
        certain=False,
        outcome="failed" if evidence.hung else "unknown",
        evidence=report_ranks(evidence, [number for side in reversed(sides) for number in side.ranks]),
        advice=advice_on_wait(odd) or _MEET_IN_TORCH,
    )


def some_inside(evidence: Evidence) -> Diagnosis | None:
    """Find ranks that waited in a collective for others when their records end, as of a job that was killed.

    Both were where they had been seen most often, so that they had been there for long.
    """
    ranks = evidence.ranks
    if evidence.active or evidence.has_failed or len(ranks) < 2 or len(ranks) < len(evidence.world):
        return None
    inside = [number for number, rank in sorted(ranks.items()) if rank.is_behind_its_count]
    outside = {number: rank for number, rank in sorted(ranks.items()) if number not in inside}
    if not inside or not outside or not all(map(_stays, ranks.values())):
        return None
    sides = _ranks_by_line(outside)
    odd, other = ranks[sides[0].ranks[0]], ranks[inside[0]]
    return Diagnosis(
        "busy" if odd.cpu_busy else "blocked",
        f"no rank's end is known; when the records end, {they_wait(inside)} in a collective at {place(other.line)}"
        f", and {'; '.join(_were_outside(side.ranks, ranks[side.ranks[0]]) for side in sides[:3])}",
        rank=odd.rank,
        node_rank=odd.node_rank,
        line=place(odd.line) or None,
        peer_line=place(other.line) or None,
        certain=False,
        outcome="unknown",
        evidence=report_ranks(evidence, [*outside, *inside]),
        advice=advice_on_wait(odd) or f"find out why rank {odd.rank} stayed at that line",
    )


def _were_outside(numbers: list[int], first: RankEvidence) -> str:
    doing = "" if first.cpu_busy is None else ", and computed" if first.cpu_busy else ", and did not compute"
    were = "was" if len(numbers) == 1 else "were"
    return f"{span(numbers)} {were} at {place(first.line)}{doing}{waits_outside(first)}"


def _stays(rank: RankEvidence) -> bool:
    """True if a rank was last seen alive at the line at which it was seen most often."""
    is_alive = rank.state == "running" and rank.error is None and rank.exit_code is None
    return is_alive and rank.line is not None and rank.often == place(rank.line).partition(" ")[0]


_MEET_IN_TORCH = (
    "if the ranks wait for each other there (through files, shared memory, a store or sockets), compare the names that "
    "each rank uses: a name with a random number, a clock, a process id or a host differs between ranks; broadcast it\n"
    "dist.barrier() does the same, and a rank that is missing there is named"
)


def _idles(rank: RankEvidence) -> bool:
    """True if a rank was alive outside of torch.distributed, and did nothing."""
    is_alive = rank.state == "running" and rank.error is None and rank.exit_code is None and not rank.stopped
    is_outside = not (rank.pending or rank.in_message or rank.transfer or rank.joining or _waits_inside_torch(rank))
    return is_alive and is_outside and not rank.is_behind_its_count and rank.cpu_busy is False and rank.line is not None


# ---- stacks alone, such as those of `py-spy dump` --------------------------------------------------------------------

_RECORD_MORE = f"flight-recorder dumps of all ranks show the collectives before ({RECORD_COLLECTIVES})"


@dataclass(frozen=True)
class _RanksAtLine:
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


def differing_stacks(evidence: Evidence) -> Diagnosis | None:
    """Compare where the ranks are, if nothing but their stacks is known."""
    ranks = {number: rank for number, rank in evidence.ranks.items() if rank.stack and rank.seen_ns is None}
    if len(ranks) < 2 or any(rank.has_calls or rank.calls for rank in evidence.ranks.values()):
        return None
    sides = _ranks_by_line(ranks)
    inside, outside = [side for side in sides if side.op], [side for side in sides if not side.op]
    if len(sides) == 1:
        return _all_at_one_line(evidence, sides[0]) if inside else None
    odd = min(outside if inside and outside else sides, key=lambda side: (len(side.ranks), side.ranks))
    others = [side for side in sides if side is not odd]
    if not inside and len(others[0].ranks) == len(odd.ranks):
        return None  # each rank is at a line of its own, as in any running program
    where = "; ".join(map(str, [*others[:3], odd]))
    base = _base_of_stacks(evidence, odd, others[0])
    if odd.op:
        return base.with_more(
            fault="order",
            finding=where,
            advice="ranks of a group must call the same collectives in the same order: look for a condition that only "
            f"{span(odd.ranks)} {'meets' if len(odd.ranks) == 1 else 'meet'}\n{_RECORD_MORE}",
        )
    them = "it" if len(odd.ranks) == 1 else "them"
    return base.with_more(
        fault="blocked",
        finding=where + (f", outside torch.distributed: the others probably wait for {them}" if inside else ""),
        advice=f"look at what that line waits for or computes: every rank must reach the collective\n{_RECORD_MORE}",
    )


def _all_at_one_line(evidence: Evidence, side: _RanksAtLine) -> Diagnosis:
    return _base_of_stacks(evidence, side, side).with_more(
        rank=None,
        finding=f"all {len(side.ranks)} ranks with a stack wait in {side.op} at {side.at}: a rank without a stack "
        "here, the network or a device keeps them waiting",
        advice=f"take the stacks of all ranks at the same time\n{_RECORD_MORE}",
    )


def _base_of_stacks(evidence: Evidence, odd: _RanksAtLine, others: _RanksAtLine) -> Diagnosis:
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


def _ranks_by_line(ranks: dict[int, RankEvidence]) -> list[_RanksAtLine]:
    """Return the ranks by the function and line at which they are, the most ranks first."""
    found: dict[tuple[str, str], list[int]] = {}
    for number, rank in sorted(ranks.items()):
        found.setdefault((_collective_function(rank), place(rank.line or rank.stack[0])), []).append(number)
    sides = [_RanksAtLine(members, op, at, describe_inside(ranks[members[0]])) for (op, at), members in found.items()]
    return sorted(sides, key=lambda side: -len(side.ranks))


def _collective_function(rank: RankEvidence) -> str:
    """Return the function of torch.distributed that the user's code called, if the rank is in one."""
    inside = collective_frames(rank.stack)
    return inside[-1].function if inside else ""

"""Rules about ranks that wait for another outside a collective: while they join, or form a group."""

from __future__ import annotations

from frog.observe.diagnose.diagnosis import Diagnosis, span
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, at_place, place
from frog.observe.diagnose.program.rank_reports import report_ranks, they_wait

_INSIDE = "torch/distributed/"


def joined_without(evidence: Evidence) -> Diagnosis | None:
    """Find the rank that does not come to where all others wait for it, inside torch.distributed."""
    ranks = evidence.ranks
    waiting = sorted(number for number, rank in ranks.items() if _waits(rank))
    apart = sorted(ranks.keys() - waiting)
    if not evidence.hung or not waiting or not apart or any(ranks[number].pending for number in waiting):
        return None
    odd, other = ranks[apart[0]], ranks[waiting[0]]
    where = f"{other.stack[0].function}" + at_place(other.line)
    waits = f"{they_wait(waiting)} in {where}"
    fault, doing, advice = reason(odd)
    return Diagnosis(
        fault,
        f"{waits}; {span(apart)} {doing}",
        rank=apart[0],
        node_rank=odd.node_rank,
        line=place(odd.line) or None,
        peer_line=place(other.line) or None,
        certain=fault == "ended" or odd.stopped,
        evidence=report_ranks(evidence, [*apart, *waiting]),
        advice=advice,
    )


def _waits(rank: RankEvidence) -> bool:
    inside = rank.stack[0].file.replace("\\", "/") if rank.stack else ""
    return rank.state == "running" and not rank.stopped and rank.exit_code != 0 and _INSIDE in inside


def reason(rank: RankEvidence) -> tuple[str, str, str]:
    """Return the fault of a rank for which others wait, what it does, and advice."""
    at = at_place(rank.line)
    if rank.state == "ended" or rank.exit_code == 0:
        return "ended", "ended without an error", "look for a return or sys.exit(0) that only this rank reaches"
    if rank.stopped:
        return "stop", f"was stopped{at}", "a stopped process (SIGSTOP, a debugger), or one blocked in the kernel"
    if rank.cpu_busy:
        return "busy", f"was still computing{at}", "an endless loop, or long work for which the others wait"
    return (
        "blocked",
        f"was{at or ' elsewhere'}, and did not compute",
        "look for a lock, a download, or a slow disk",
    )

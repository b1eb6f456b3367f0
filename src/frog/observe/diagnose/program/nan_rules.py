"""Rules about values that are not finite: on which rank did the first one arise?

After an all-reduce, every rank has the NaN of one. The logs tell them apart if each rank writes its own loss: the first
NaN comes after fewer losses than that of the other ranks.
"""

from __future__ import annotations

from frog.observe.diagnose.diagnosis import Diagnosis, note, span
from frog.observe.diagnose.program.evidence import Evidence

_ADVICE = (
    "`frog.record(step, loss=loss)` with each rank's own loss shows which had the first NaN\n"
    "torch.autograd.set_detect_anomaly(True) shows where it arises"
)


def first_not_finite(evidence: Evidence) -> int | None:
    """Return the rank whose log has the first loss that is not finite; None if the logs do not tell."""
    ranks = {number: rank.num_losses for number, rank in evidence.ranks.items() if rank.nan_line}
    first = sorted(ranks, key=lambda number: ranks[number])[:2]
    if len(evidence.ranks) < 2 or not first:
        return None
    if len(first) == 1:
        others = [rank.num_losses for number, rank in evidence.ranks.items() if number != first[0]]
        return first[0] if any(others) else None  # often, only rank 0 writes the loss
    return first[0] if ranks[first[0]] < ranks[first[1]] else None


def not_finite_in_log(evidence: Evidence) -> Diagnosis | None:
    """Report a program that continued with a loss that is not finite."""
    ranks = sorted(number for number, rank in evidence.ranks.items() if rank.nan_line)
    what = "loss that is not finite" if ranks else "gradient norm that stays NaN"
    ranks = ranks or sorted(number for number, rank in evidence.ranks.items() if rank.norm_line)
    if not ranks:
        return None
    first = first_not_finite(evidence)
    others = f", first on rank {first}" if first is not None and len(ranks) > 1 else ""
    return Diagnosis(
        "nan",
        f"the log of {span(ranks)} shows a {what}{others}, and the program continued",
        rank=first,
        certain=False,
        outcome="completed" if evidence.ended_code == 0 else "running" if evidence.active else "failed",
        evidence=not_finite_lines(evidence, ranks),
        advice=_ADVICE,
    )


def not_finite_lines(evidence: Evidence, ranks: list[int]) -> tuple[str, ...]:
    """Return the lines of the logs."""
    seen = [evidence.ranks[number] for number in ranks[:8]]
    return tuple(
        note(None, f"rank {rank.rank}", line, rank.sources[-1])
        for rank in seen
        if (line := rank.nan_line or rank.norm_line)
    )

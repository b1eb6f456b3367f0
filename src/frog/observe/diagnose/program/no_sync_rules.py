"""A rule about gradient accumulation with DDP that averages the gradients in each micro-batch all the same."""

from __future__ import annotations

from frog.observe.diagnose.diagnosis import Diagnosis, note, span
from frog.observe.diagnose.program.evidence import Evidence, at_place, place

_LEAST_TIMES = 2


def no_sync_without_effect(evidence: Evidence) -> Diagnosis | None:
    """Report that the program entered `no_sync` only after the forward, which decides about the average."""
    found = {
        number: rank.no_sync
        for number, rank in sorted(evidence.ranks.items())
        if rank.no_sync is not None and rank.no_sync.without_effect >= _LEAST_TIMES
    }
    if not found:
        return None
    rank, seen = next(iter(found.items()))
    lines = [
        note(None, f"rank {number}", f"{one.without_effect} of {one.entered} no_sync had no effect", "status.json")
        for number, one in list(found.items())[:8]
    ]
    return Diagnosis(
        "no_sync",
        f"DDP's no_sync{at_place(seen.line)} had no effect in {seen.without_effect} of {seen.entered} micro-batches of "
        f"{span([*found])}: the forward ran before it, so DDP averaged the gradients in each: the numbers are right, "
        "but more is sent than necessary",
        rank=rank,
        line=place(seen.line) or None,
        certain=False,
        outcome="completed" if evidence.ended_code == 0 else "running" if evidence.active else "failed",
        evidence=tuple(lines),
        advice="put the forward into the context too: `with model.no_sync(): loss = model(x); loss.backward()`",
    )

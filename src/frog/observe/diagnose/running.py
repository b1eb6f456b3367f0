"""Diagnose a run in progress: each rank's position, and which rank the others wait for."""

from __future__ import annotations

import time

from frog.core.runs.run import FRESH_S
from frog.core.units import format_seconds, span
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis, note
from frog.observe.diagnose.network_rules import different_call

_LONG_S = 10.0
"""A rank that waits longer than this in one collective waits for another rank."""


def under_way(case: Case, calls: CollectiveCalls, now_ns: int | None = None) -> Diagnosis:
    """Return the progress of a run, and whether one of its ranks delays the others."""
    now_ns = now_ns or time.time_ns()
    ages = {rank: (now_ns - beat.unix_ns) / 1e9 for rank, beat in case.attempt.beats.items()}
    diagnosis = Diagnosis(
        "running",
        _position(case),
        outcome="running",
        evidence=tuple(_line(case, rank, age_s) for rank, age_s in sorted(ages.items())),
        advice="nothing: the run is still in progress. `frog logs RUN -f` follows it",
    )
    silent = [rank for rank, age_s in ages.items() if age_s > FRESH_S and case.silent(rank)]
    if silent and len(silent) < len(ages):
        rank = max(silent, key=lambda r: ages[r])
        return diagnosis.with_more(
            **case.about(rank),
            fault="stop",
            certain=False,
            finding=f"rank {rank} has sent no heartbeat for {format_seconds(ages[rank])}, {case.where(rank)}"
            "; the others wait for it, or soon will: it was stopped, killed, or cut off from the disk with the run "
            "folder",
            advice=f"{_process(case, rank)} (T: stopped, D: blocked in the kernel)\n"
            "`frog run` kills it after --deadline seconds; with --restarts the run restarts from the last checkpoint",
        )
    if calls.mismatch is not None:
        wrong = different_call(case, calls)
        assert wrong is not None
        return wrong.with_more(*diagnosis.evidence, outcome="running")
    absence = calls.absence
    waited_s = _waited_s(case, calls)
    if absence is None or waited_s < _LONG_S:
        return diagnosis
    rank = absence.absent[0]
    return diagnosis.with_more(
        **case.about(rank),
        fault="stuck",
        collective=str(absence.call),
        certain=False,
        finding=f"{span(list(absence.waiting))} have waited {format_seconds(waited_s)} in {absence.call} (step "
        f"{absence.call.step}) for {span(absence.absent)}, whose heartbeat continues {case.where(rank)}: slow or hung",
        advice=f"{_process(case, rank)}; `py-spy dump --pid PID` shows its stack",
    )


def _position(case: Case) -> str:
    steps = case.run.count("train", "steps")
    taken = [worker.last_step for worker in case.attempt.workers.values()]
    return f"the run is in progress: {max(taken, default=0)} of {steps or '?'} steps taken by {len(case.ranks)} ranks"


def _line(case: Case, rank: int, age_s: float) -> str:
    beat = case.attempt.beats[rank]
    phase_s = max(0.0, (beat.beat_ns - beat.phase_ns) / 1e9)
    what = f"{case.position(rank)} for {format_seconds(phase_s)}"
    if beat.open:
        first = beat.open[0]
        waited = format_seconds(max(0.0, (beat.beat_ns - first.start_ns) / 1e9))
        what += f", waiting {waited} in {first.op} of {first.payload_bytes} bytes over {first.axis}"
    what += f"; last heartbeat {format_seconds(age_s)} ago"
    return note(beat.unix_ns, f"rank {rank}", what, f"heartbeats/rank_{rank}.json")


def _waited_s(case: Case, calls: CollectiveCalls) -> float:
    waiting = calls.absence.waiting if calls.absence is not None else {}
    return max(
        (
            (case.attempt.beats[rank].beat_ns - call.mono_ns) / 1e9
            for rank, call in waiting.items()
            if rank in case.attempt.beats and call.mono_ns is not None
        ),
        default=0.0,
    )


def _process(case: Case, rank: int) -> str:
    beat = case.attempt.beats[rank]
    return f"on {beat.host}: `ps -o pid,stat,wchan,etime -p {beat.pid}`"

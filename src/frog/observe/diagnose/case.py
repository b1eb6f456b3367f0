"""One attempt of a run as the rules of the diagnosis see it: each rank's last position, messages and end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from frog.core.errors import describe_exit, signal_name
from frog.core.runs import RecordedRun
from frog.core.runs.attempts import Attempt, Worker
from frog.core.runs.event_schema import Beat, CollectiveEvent, SpanEvent
from frog.core.runs.launcher_schema import ExitEvent, HangEvent, LeftOutEvent
from frog.core.runs.vocabulary import STEP_PHASES
from frog.observe.diagnose.diagnosis import note
from frog.observe.diagnose.rank_error import RankError, rank_error


@dataclass(frozen=True)
class Position:
    """The last known position of a rank."""

    step: int | None
    phase: str | None
    source: str
    """The file that reports it."""
    inferred: bool = False
    """True if no file reports it: it is the phase after the last one that the rank finished."""

    def __str__(self) -> str:
        if self.step is None:
            return "before its first step"
        return f"step {self.step}" + (f", {self.phase}" if self.phase else "")


class Case:
    """An attempt, and the questions that several rules ask about it."""

    def __init__(self, run: RecordedRun, attempt: Attempt) -> None:
        self.run, self.attempt = run, attempt
        self.ranks = attempt.ranks

    # ---- what a rank reported ----------------------------------------------------------------------------------------

    def exit(self, rank: int) -> ExitEvent | None:
        """Return the agent's report of the rank's exit code, if it failed."""
        return next((event for event in self.attempt.exits if event.rank == rank), None)

    def hang(self, rank: int) -> HangEvent | None:
        """Return the watchdog's report, if the rank hung."""
        return next((event for event in self.attempt.hangs if event.rank == rank), None)

    def left_out(self, rank: int) -> LeftOutEvent | None:
        """Return the launcher's report, if it ended the rank after the others had continued without it."""
        return next((event for event in self.attempt.left_out if event.rank == rank), None)

    def error(self, rank: int) -> RankError | None:
        """Return the error with which the rank ended, if it reported one."""
        worker = self.attempt.workers.get(rank)
        if worker is not None and worker.error is not None:
            return rank_error(worker.error, self.events_file(rank))
        event = self.exit(rank)
        return rank_error(event.error, "events/launcher.jsonl") if event is not None and event.error else None

    def signal_of(self, rank: int) -> str | None:
        """Return the name of the signal that killed the rank."""
        event = self.exit(rank)
        return signal_name(-event.code) if event is not None and event.code < 0 else None

    def lost_peers(self, rank: int) -> bool:
        """True if the rank did not fail by itself: one of its collectives failed, or it was ended with the others."""
        error = self.error(rank)
        return error.lost_peers if error is not None else self.signal_of(rank) == "SIGTERM"

    @cached_property
    def own_errors(self) -> dict[int, RankError]:
        """The errors of ranks that failed for a reason other than losing their peers."""
        return {rank: error for rank in self.ranks if (error := self.error(rank)) and not error.lost_peers}

    @cached_property
    def comm_errors(self) -> dict[int, RankError]:
        """The errors of ranks whose collectives failed."""
        return {rank: error for rank in self.ranks if (error := self.error(rank)) and error.lost_peers}

    @cached_property
    def timed_out(self) -> list[int]:
        """Ranks whose collective timed out."""
        return [rank for rank, error in self.comm_errors.items() if error.facts.cause == "timed_out"]

    @cached_property
    def first_lost(self) -> int | None:
        """The rank whose collective failed first; its exit may have caused the failures of the others."""
        return min(self.comm_errors, key=lambda rank: self.failed_ns(rank) or float("inf"), default=None)

    def silent(self, rank: int) -> bool:
        """True if the rank never reported how it ended."""
        worker, beat = self.attempt.workers.get(rank), self.attempt.beats.get(rank)
        if worker is not None and (worker.status or worker.error):
            return False
        return beat is None or beat.status == "running"

    # ---- where it was ------------------------------------------------------------------------------------------------

    def position(self, rank: int) -> Position:
        """Return a rank's last position, from its heartbeat if that is of this attempt, else from its events."""
        worker = self.attempt.workers.get(rank)
        beat = self.beat(rank)
        file = self.events_file(rank)
        if worker is not None and (error := worker.error) is not None and error.phase:
            return Position(error.step, error.phase, file)
        if beat is not None and beat.phase:
            return Position(beat.step, beat.phase, self.beat_file(rank))
        if worker is not None and worker.start is not None:
            step, phase = next_position(worker, self.run)
            return Position(step, phase, file, inferred=True)
        if beat is not None and beat.step:
            return Position(beat.step, None, self.beat_file(rank))
        return Position(None, None, file)

    def where(self, rank: int) -> str:
        """Return a rank's position as part of a sentence: in step 3, reduce."""
        position = self.position(rank)
        return str(position) if position.step is None else f"in {position}"

    def beat(self, rank: int) -> Beat | None:
        """Return a rank's last heartbeat in this attempt: its own file, or the one that the watchdog saved."""
        hang = self.hang(rank)
        return self.attempt.beats.get(rank) or (hang.heartbeat if hang else None)

    def events_file(self, rank: int) -> str:
        return f"events/rank_{rank}.jsonl"

    def beat_file(self, rank: int) -> str:
        return self.attempt.beat_files.get(rank, "events/launcher.jsonl")

    # ---- lines of evidence -------------------------------------------------------------------------------------------

    def report_position(self, rank: int) -> str:
        """Return the line that says where a rank was last seen."""
        position, at = self.position(rank), self.attempt.last_sign_ns(rank)
        if position.inferred:
            what = f"its last event is {self._last_event(rank)}; next would be {position}"
        else:
            beat = self.beat(rank)
            at = beat.unix_ns if beat is not None and position.source != self.events_file(rank) else at
            what = f"was last in {position}" if position.step is not None else "never reached its first step"
            what += self._open_words(rank)
        return note(at, f"rank {rank}", what, position.source)

    def _open_words(self, rank: int) -> str:
        beat = self.beat(rank)
        if beat is None or not beat.open:
            return ""
        first = beat.open[0]
        return f", in {first.op} of {first.payload_bytes} bytes over {first.axis} (its collective no. {first.seq})"

    def _last_event(self, rank: int) -> str:
        worker = self.attempt.workers[rank]
        last = worker.events[-1]
        match last:
            case SpanEvent():
                what = f"the end of {last.phase}"
            case CollectiveEvent():
                what = f"{last.op} over {last.axis}"
            case _:
                what = str(last.__struct_config__.tag)
        return f"{what} of step {last.step}"

    def report_exit(self, rank: int) -> str | None:
        """Return the line that says how the agent saw the rank end."""
        event = self.exit(rank)
        if event is None:
            return None
        silence = "" if event.error else " without an error message"
        how = describe_exit(event.code)
        return note(event.unix_ns, f"rank {rank}", f"(pid {event.pid}) {how}{silence}", "events/launcher.jsonl")

    def report_error(self, rank: int) -> str | None:
        """Return the line with the rank's error."""
        error = self.error(rank)
        if error is None:
            return None
        return note(self.failed_ns(rank), f"rank {rank}", f"{error.kind}: {error.first_line}", error.file)

    def failed_ns(self, rank: int) -> int | None:
        """Return when a rank failed, as time of day: its last heartbeat, unless a later attempt overwrote it, or its
        error; else when its agent saw the failure, perhaps late.
        """
        beat, error = self.attempt.beats.get(rank), self.error(rank)
        if beat is not None and beat.status != "running":
            return beat.unix_ns
        if error is not None:
            return error.unix_ns
        event = self.exit(rank)
        return event.unix_ns if event is not None else self.attempt.last_sign_ns(rank)

    def report_hang(self, rank: int) -> str | None:
        """Return the line about the watchdog's report."""
        event = self.hang(rank)
        if event is None:
            return None
        waited = f"{event.waited_s:.0f} s"
        how = f"sent no heartbeat for {waited}" if event.kind == "silent" else f"stayed in one collective for {waited}"
        return note(event.unix_ns, "launcher", f"rank {rank} {how}, so the watchdog killed it", "events/launcher.jsonl")

    def report_others(self, rank: int | None) -> list[str]:
        """Return the lines in which other ranks report that they lost a rank, or where they waited."""
        lines: list[str | None] = []
        for other in self.ranks:
            if other == rank:
                continue
            if self.lost_peers(other) and self.error(other):
                lines.append(self.report_error(other))
            elif self.silent(other) and (beat := self.beat(other)) and beat.open:
                lines.append(self.report_position(other))
        said = [line for line in lines if line]
        return said[:4] + ([f"{'':12}  and {len(said) - 4} more ranks reported the same"] if len(said) > 4 else [])

    def about(self, rank: int) -> dict[str, Any]:
        """Return the position as fields of a diagnosis."""
        position = self.position(rank)
        return {"rank": rank, "node_rank": self.attempt.node_of(rank), "step": position.step, "phase": position.phase}


def next_position(worker: Worker, run: RecordedRun) -> tuple[int, str | None]:
    """Return the step and phase after the last one that a rank finished."""
    start = worker.start.step if worker.start else 0
    spans = worker.of(SpanEvent)
    done = {(event.step, event.phase) for event in spans}
    last = spans[-1] if spans else None
    taken = max(worker.last_step, *(event.step for event in spans if event.phase == "zero"), 0)
    if last is not None and last.step > taken and last.phase in STEP_PHASES:
        return last.step, _phase_after(last, spans, run)
    steps = run.count("train", "steps")
    for phase, section in (("evaluate", "eval"), ("checkpoint", "checkpoint")):
        every = run.count(section, "every")
        due = taken == steps or bool(every and taken % every == 0)
        if (due if taken > start else taken == 0 and phase == "evaluate") and (taken, phase) not in done:
            return taken, phase
    return (taken, None) if taken == steps else (taken + 1, "data")


def _phase_after(last: SpanEvent, spans: list[SpanEvent], run: RecordedRun) -> str | None:
    """Return the phase that followed in an earlier step; else the next one in the loop's order."""
    here = (last.phase, last.micro)
    for before, after in itertools.pairwise(spans):
        if (before.phase, before.micro) == here and before.step == after.step < last.step:
            return after.phase
    if last.phase == "backward" and last.micro < (run.count("train", "grad_accum") or 1) - 1:
        return "forward"
    after_last = STEP_PHASES.index(last.phase) + 1
    return STEP_PHASES[after_last] if after_last < len(STEP_PHASES) else None

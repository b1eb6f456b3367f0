"""Worlds of third-party programs that do not continue: asks their ranks what they know, describes and ends them.

watching ──> asking ──> found
   └── <─────────┘   a collective finished in the meantime

If a user stops a world in which a rank waits, it collects the same before the ranks are ended. The description says
what each rank does, in which line, and in which collective it waits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from frog.core.errors import HangError, signal_code
from frog.core.runs.folder import RunFolder
from frog.core.runs.observed import (
    CodeLine,
    CollectiveEntry,
    Observed,
    Status,
    read_observed,
    read_statuses,
    write_request,
)
from frog.core.runs.outcome import name_ranks
from frog.core.runs.positions import PositionWriter
from frog.core.units import count
from frog.hooks import describe_hang
from frog.launch.launch_record import Journal
from frog.launch.node_agents import Options
from frog.launch.watchdog import Finding, Kind, ProgramWatch, Role, WatchLimits, take_snapshots

_LOOK_S = 0.5
_ANSWER_S = 10.0
"""Time for the ranks to write their evidence. Those that can do so in a second."""
_STOP_ANSWER_S = 3.0
"""The same if a user has asked to stop the program."""
_LEAST_WAIT_S = 5.0
"""Shortest wait of a rank that is worth a look when a user stops the program."""


@dataclass(frozen=True)
class Stall:
    """A world that does not continue, or one that waits for a slow rank."""

    attempt: int
    finding: Finding
    text: str
    """What the ranks do, for people."""


@dataclass
class _Question:
    """A request to all ranks for their evidence."""

    number: int
    finding: Finding
    asked_at: float


class StallWatch:
    """Watches the attempts of one program."""

    def __init__(self, journal: Journal, options: Options) -> None:
        self.journal, self.folder = journal, journal.folder if options.observe else None
        self.limits = WatchLimits(deadline_s=options.deadline_s, idle_s=options.idle_s)
        self._may_restart = options.restarts > 0
        self.ended: Stall | None = None
        """The last stall for which the ranks had to be ended."""
        self._attempt = -1
        self._watch = ProgramWatch(self.limits)
        self._positions: PositionWriter | None = None
        """What the ranks did over time, for `frog watch`."""
        self._question: _Question | None = None
        self._last_question: _Question | None = None
        """Asked when a user stopped the program."""
        self._next_look = 0.0

    def must_end(self, attempt: int, ranks: Set[int], now: float) -> bool:
        """Look at the ranks; return True if they must be ended.

        Records a stall; prints it unless the run's error repeats it.
        """
        stall = self.look(attempt, ranks, now)
        if stall is None:
            return False
        finding = stall.finding
        self._record(stall)
        if finding.ends:
            self.ended = stall
        if not finding.ends or self._may_restart:
            print(stall.text, file=sys.stderr, flush=True)
        return finding.ends

    def ask_before_stop(self, now: float) -> bool:
        """Ask the ranks for their evidence if a user stops a world in which one has waited; return True if asked."""
        if self.folder is None or self.journal.is_chosen:
            return False
        finding = self._watch.wait(now, _LEAST_WAIT_S)
        if finding is None:
            return False
        self._last_question = _Question(write_request(self.folder.path, "stop"), finding, now)
        return True

    def may_stop(self, now: float) -> bool:
        """Return True, once, when the asked ranks have answered, or had time to. Records and prints what they do."""
        if self._last_question is None or self.folder is None:
            return False
        statuses = read_statuses(self.folder.path, self._attempt)
        if now - self._last_question.asked_at < _STOP_ANSWER_S and not self._have_answered(
            self._last_question, statuses
        ):
            return False
        stall = self._stall(self.folder, self._last_question.finding)
        self._last_question = None
        self._record(stall, stopped=True)
        print(f"{stall.text}\n  try: frog diagnose {self.folder.path}", file=sys.stderr, flush=True)
        return True

    def _record(self, stall: Stall, *, stopped: bool = False) -> None:
        finding = stall.finding
        self.journal.record(
            "stall",
            attempt=stall.attempt,
            kind=finding.kind.value,
            still_s=round(finding.still_s, 3),
            roles={rank: role.value for rank, role in finding.roles.items()},
            text=stall.text,
            ends=finding.ends,
            stopped=stopped,
        )

    def error(self, attempt: int) -> HangError | None:
        """Return the error of an attempt that was ended."""
        if self.ended is None or self.ended.attempt != attempt or self.folder is None:
            return None
        lines = [self.ended.text, describe_hang(self.folder.path)]
        error = HangError("\n".join(filter(None, lines)), f"frog diagnose {self.folder.path}")
        error.exit_code = signal_code(signal.SIGKILL)
        return error

    def look(self, attempt: int, ranks: Set[int], now: float) -> Stall | None:
        """Return a stall, once the ranks have answered or can no longer be expected to.

        None for a run without a folder or observers, and for one of Frog's trainer, which has heartbeats.
        """
        if self.folder is None or self.journal.is_chosen:
            return None
        if attempt != self._attempt:
            self._attempt, self._watch, self._question = attempt, ProgramWatch(self.limits), None
            self._positions = PositionWriter(self.folder.path, attempt)
        if now < self._next_look:
            return None
        self._next_look = now + _LOOK_S
        return self._look(self.folder, ranks, now)

    def _look(self, folder: RunFolder, ranks: Set[int], now: float) -> Stall | None:
        statuses = read_statuses(folder.path, self._attempt)
        if self._positions is not None:
            self._positions.look(statuses)
        if not ranks or statuses.keys() != ranks:
            return None  # some ranks have not started, or are not observed
        quiet = self._watch.still_s(now) > self.limits.deadline_s / 2
        finding = self._watch.look(take_snapshots(statuses, with_children=quiet), now)
        if self._question is not None:
            return self._answered(folder, self._question, statuses, now)
        if finding is None:
            return None
        if not finding.ends:
            seen = {rank: Observed(folder.path, rank, status) for rank, status in statuses.items()}
            return Stall(self._attempt, finding, describe_stall(finding, seen))
        number = write_request(folder.path, finding.kind.value)
        self._question = _Question(number, finding, now)
        return None

    def _answered(
        self, folder: RunFolder, question: _Question, statuses: dict[int, Status], now: float
    ) -> Stall | None:
        """Return the stall if all ranks that can answer have done so; forget it if a collective has finished.

        The processor time of an answer is not progress.
        """
        waited_s = now - question.asked_at
        if self._watch.still_s(now) < waited_s:
            self._question = None
            return None
        if waited_s < _ANSWER_S and not self._have_answered(question, statuses):
            return None
        self._question = None
        return self._stall(folder, question.finding)

    def _have_answered(self, question: _Question, statuses: dict[int, Status]) -> bool:
        stopped = {rank for rank, role in question.finding.roles.items() if role is Role.STOPPED}
        able = [own for rank, own in statuses.items() if own.state == "running" and rank not in stopped]
        return all(status.answered == question.number for status in able)

    def _stall(self, folder: RunFolder, finding: Finding) -> Stall:
        evidence = read_observed(folder.path).get(self._attempt, {})
        return Stall(self._attempt, finding, describe_stall(finding, evidence))


# ---- descriptions ----------------------------------------------------------------------------------------------------

_MOST_GROUPS = 12
"""Most lines about different ranks; the rest is in the run folder."""


def describe_stall(finding: Finding, evidence: Mapping[int, Observed]) -> str:
    """Describe a finding: a heading, and a line for each group of ranks that do the same."""
    lines = lines_by_text({rank: describe_rank(role, evidence.get(rank)) for rank, role in finding.roles.items()})
    more = [f"  and {count(len(lines) - _MOST_GROUPS, 'more group')} of ranks"] if len(lines) > _MOST_GROUPS else []
    return "\n".join([_heading(finding), *lines[:_MOST_GROUPS], *more])


def lines_by_text(texts: Mapping[int, str]) -> list[str]:
    """Return a line for each group of ranks of which the same is said. texts: what each rank does."""
    by_text: dict[str, list[int]] = {}
    for rank, text in texts.items():
        by_text.setdefault(text, []).append(rank)
    return [f"  {name_ranks(ranks)}: {_plural(text) if ranks[1:] else text}" for text, ranks in by_text.items()]


def _plural(text: str) -> str:
    """Put what one rank does into the plural."""
    verb, _, rest = text.partition(" ")
    plural = {"is": "are", "has": "have", "waits": "wait", "computes": "compute"}.get(verb, verb)
    return f"{plural} {rest.replace('but its process has', 'but their processes have')}".rstrip()


def _heading(finding: Finding) -> str:
    still = f"{finding.still_s:.0f} s"
    if finding.kind is Kind.HANG:
        return f"hang: no rank has finished a collective or computed anything for {still}"
    if finding.kind is Kind.LEFT:
        left = name_ranks([rank for rank, role in finding.roles.items() if role in (Role.ENDED, Role.FAILED)])
        return f"hang: the other ranks have waited for {left} for {still}"
    busy = name_ranks([rank for rank, role in finding.roles.items() if role is Role.COMPUTES])
    return f"{busy} computed for {still} while other ranks wait in a collective"


def describe_rank(role: Role, own: Observed | None) -> str:
    """Say what a rank does, without its number: `waits in all_reduce number 2 of group 0 at my.py:8`."""
    if own is None or own.status is None:
        return role.value
    done = f"after {count(own.num_completed, 'collective')}"
    if role is Role.FAILED:
        error = own.error
        what = f" with {error.type}{_at(error.line)}" if error is not None else ""
        return f"failed{what}, but its process has not ended"
    if role is Role.ENDED:
        return f"has ended, {done}"
    if role is Role.WAITS:
        return _describe_wait(own)
    verb = {Role.STOPPED: "is stopped", Role.COMPUTES: "computes", Role.IDLE: "waits outside torch.distributed"}[role]
    return f"{verb}{_at(own.status.line)}{_code(own)}, {done}"


def _describe_wait(own: Observed) -> str:
    entry = oldest_pending(own)
    status = own.status
    assert status is not None
    if entry is not None:
        sizes = ", ".join(f"{dtype} {size}" for dtype, size in zip(entry.dtypes, entry.sizes, strict=False))
        what = f"{entry.op} number {entry.seq} of group {entry.group}" + (f" ({sizes})" if sizes else "")
        return f"waits in {what}{_at(entry.line or status.line)}"
    pending = next((group for group in status.groups if group.pending), None)
    if pending is not None:
        return f"waits in collective number {pending.completed + 1} of group {pending.group}{_at(status.line)}"
    if status.in_message:
        return f"waits for a message{_at(status.line)}{_code(own)}"
    function = status.inside.function if status.inside is not None else "torch.distributed"
    return f"waits in {function}{_at(status.line)}"


def oldest_pending(own: Observed) -> CollectiveEntry | None:
    """Return the first collective that a rank has entered and not left."""
    entries = own.collectives.entries if own.collectives is not None else []
    return next((entry for entry in entries if not entry.done), None)


def _at(line: CodeLine | None) -> str:
    """Return a line as ` at my.py:8 in main`, relative to the current directory if it is inside."""
    if line is None:
        return ""
    path = Path(line.file)
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    shown = os.path.relpath(path) if inside else line.file
    return f" at {shown}:{line.line}" + (f" in {line.function}" if line.function not in ("", "<module>") else "")


def _code(own: Observed) -> str:
    """Return the text of the line in which the main thread is, if the rank wrote it."""
    main = next((thread for thread in own.stacks.threads if thread.is_main), None) if own.stacks else None
    line = own.status.line if own.status else None
    frames = main.frames if main is not None else []
    code = next((f.code for f in reversed(frames) if line and (f.file, f.line) == (line.file, line.line)), "")
    return f" ({code})" if code else ""

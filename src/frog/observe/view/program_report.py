"""The report of a program that is not Frog's: its ranks, how each ended, where it was, and the end of its log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from frog.core.errors import RunError, describe_exit
from frog.core.files import open_plain
from frog.core.runs import RecordedRun
from frog.core.runs.attempts import Attempt
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import History
from frog.core.runs.observed import Observed, read_observed
from frog.core.runs.record import ProgramInfo, Record, RunFile
from frog.core.schema import shortened
from frog.core.terminal import printable
from frog.observe.check.answers import broken_rules, read_answers
from frog.observe.check.rule import Answer
from frog.observe.view.program_pictures import program_pictures
from frog.observe.view.report_diagnosis import shown_diagnosis, source_roots
from frog.observe.view.runs import row_of_observed, state_of, status_of

_ENDS = {"completed": "ended with exit code 0", "running": "is running", "interrupted": "was stopped with the program"}
"""How a rank without a failure ended, by the run's status."""
_OBSERVED_ENDS = {
    "ended": "reached the end of the program",
    "failed": "ended with an exception",
    "running": "is running",
    "died": "gives no sign of life",
}
"""How a rank ended, by the state that its observer wrote last."""
_FAILED = ("failed", "died", "interrupted")
"""States of runs whose report begins with a diagnosis."""
_TAIL_BYTES = 64 << 10
_TAIL_LINES = 40
_MOST_LINE = 2_000
_MOST_RANKS = 64
"""Ranks whose logs are shown; the rank that failed first is always among them."""


@dataclass(frozen=True)
class RankRow:
    """One rank in the last attempt."""

    rank: int
    node: int | None
    pid: int | None
    end: str
    """How it ended, or "running"."""
    line: str
    """Its last known line in the program."""
    collectives: str
    """Completed and started collectives per group."""
    cpu_s: float | None
    memory_bytes: int | None


@dataclass(frozen=True)
class LogTail:
    """The last lines of a rank's log."""

    rank: int
    lines: list[str]


def program_context(folder: RunFolder, run: RunFile, program: ProgramInfo, history: History) -> dict[str, Any]:
    """Return what the page of a program shows, without its charts."""
    recorded, record = history.run, history.run.record
    status = status_of(folder, run, record)
    observed = _last(read_observed(folder.path))
    rows = [replace(row, line=_relative(row.line, program)) for row in _rows(recorded, observed, status)]
    first = record.error.rank if record and record.error else 0
    return {
        **_common(history, rows, observed, folder.path),
        "diagnosis": shown_diagnosis(folder, source_roots(program), len(rows)) if status in _FAILED else None,
        "name": run.name,
        "created": run.created,
        "run": run,
        "program": program,
        "command": shlex.join(program.command),
        "status": status,
        "error": record.error if record else None,
        "wall_s": record.wall_s if record else None,
        "num_attempts": len([attempt for attempt in recorded.attempts if attempt.worlds]),
        "tails": _tails(folder, [row.rank for row in rows], first),
        "first": first,
        "unknown": _unknown(folder, observed, record, _has_steps(history)),
    }


def observed_context(folder: RunFolder, history: History) -> dict[str, Any]:
    """Return what the page shows of a program below plain torchrun or srun: only the observers of its ranks wrote."""
    attempts = read_observed(folder.path)
    observed = _last(attempts)
    row = row_of_observed(folder.path)
    statuses = [own.status for own in observed.values() if own.status is not None]
    began_ns = min((status.started_unix_ns for status in statuses), default=0)
    last_ns = max((status.unix_ns for status in statuses), default=0)
    errors = [own.error for own in observed.values() if own.error is not None and own.error.thread == "MainThread"]
    error = min(errors, key=lambda raised: raised.unix_ns, default=None)
    return {
        **_common(history, [_observed_row(own) for own in observed.values()], observed, folder.path),
        "diagnosis": shown_diagnosis(folder, source_roots(None), len(observed)) if row.status in _FAILED else None,
        "name": row.name,
        "created": row.created,
        "run": None,
        "program": None,
        "command": None,
        "status": row.status,
        "error": error,
        "wall_s": (last_ns - began_ns) / 1e9 if statuses else None,
        "num_attempts": len(attempts),
        "tails": [],
        "first": error.rank if error else 0,
        "unknown": [
            *_unknown_numbers(observed, _has_steps(history)),
            "The command, its output and exit codes: another launcher started the ranks, and has them.",
        ],
    }


def _relative(line: str, program: ProgramInfo) -> str:
    """Return a place relative to the folder in which the program ran, if it is below it."""
    return line.removeprefix(program.cwd.rstrip("/") + "/")


def _common(history: History, rows: list[RankRow], observed: dict[int, Observed], folder: Path) -> dict[str, Any]:
    main = history.main if _has_steps(history) else None
    nodes = sorted({row.node for row in rows if row.node is not None})
    cpu_s = {row.rank: row.cpu_s for row in rows if row.cpu_s is not None}
    return {
        "rules": _rules(folder),
        "rows": rows,
        "nodes": nodes,
        "pictures": program_pictures(cpu_s, observed, len(nodes)) if len(rows) <= _MOST_RANKS else [],
        "step": int(main.steps[-1]) if main else None,
        "loss": float(main.scalars["loss_mean"][-1]) if main else None,
        "problems": [*history.run.problems, *(problem for own in observed.values() for problem in own.problems)],
    }


def _rules(folder: Path) -> dict[str, Any] | None:
    """Return what `frog check` says of a run; None if it recorded nothing for that."""
    try:
        checked = read_answers(folder)
    except RunError as error:
        return {"broken": [], "strip": [], "note": "", "problem": str(error)}
    if not checked.records:
        return None
    strip = [
        {
            "name": answer.rule.name,
            "state": _outcome(answer),
            "says": f"{answer.rule.says}{f': not checked, {answer.why_not}' if answer.why_not else ''}",
            "since": answer.broken.step if answer.broken is not None else None,
        }
        for answer in checked.answers
    ]
    return {"broken": broken_rules(checked.answers), "strip": strip, "note": checked.note, "problem": ""}


def _outcome(answer: Answer) -> str:
    if answer.held:
        return "held"
    return "unchecked" if answer.broken is None else answer.broken.sure


def _has_steps(history: History) -> bool:
    return history.main is not None and len(history.main.steps) > 0


def _last(attempts: dict[int, dict[int, Observed]]) -> dict[int, Observed]:
    return attempts[max(attempts)] if attempts else {}


def _observed_row(own: Observed) -> RankRow:
    """Return the row of a rank of which only its observer wrote."""
    seen = own.status
    return RankRow(
        rank=own.rank,
        node=seen.node_rank if seen else None,
        pid=seen.pid if seen else None,
        end=_OBSERVED_ENDS[state_of(seen)] if seen else "did not write a status",
        line=_last_line(own),
        collectives=_collectives(own),
        cpu_s=seen.cpu_s if seen else None,
        memory_bytes=seen.rss_bytes if seen else None,
    )


def _collectives(own: Observed | None) -> str:
    groups = own.groups if own else []
    return ", ".join(f"{group.completed:,} of {group.enqueued:,} in group {group.group}" for group in groups)


def _rows(run: RecordedRun, observed: dict[int, Observed], status: str) -> list[RankRow]:
    attempt = run.last
    ranks = sorted({*(attempt.ranks if attempt else ()), *observed})
    return [_row(rank, attempt, observed.get(rank), status) for rank in ranks]


def _row(rank: int, attempt: Attempt | None, observed: Observed | None, status: str) -> RankRow:
    worlds = attempt.worlds if attempt else []
    pids = {own: pid for world in worlds for own, pid in zip(world.ranks, world.pids, strict=False)}
    codes = {event.rank: event.code for event in attempt.exits} if attempt else {}
    seen = observed.status if observed else None
    return RankRow(
        rank=rank,
        node=attempt.node_of(rank) if attempt else None,
        pid=pids.get(rank),
        end=describe_exit(codes[rank]) if rank in codes else _ENDS.get(status, "did not report a failure"),
        line=_last_line(observed),
        collectives=_collectives(observed),
        cpu_s=seen.cpu_s if seen else None,
        memory_bytes=seen.rss_bytes if seen else None,
    )


def _last_line(observed: Observed | None) -> str:
    """Return the line at which a rank was last seen, or at which an exception ended it."""
    if observed is None:
        return ""
    seen = observed.status.line if observed.status is not None else None
    raised = observed.error.line if observed.error is not None and observed.error.thread == "MainThread" else None
    return f"{seen or raised or ''}"


def _tails(folder: RunFolder, ranks: Sequence[int], first: int) -> list[LogTail]:
    shown = [first, *(rank for rank in ranks if rank != first)][:_MOST_RANKS]
    tails = ((rank, tail(folder.rank_log(rank))) for rank in shown)
    return [LogTail(rank, lines) for rank, lines in tails if lines]


def tail(path: Path) -> list[str]:
    """Return the last lines of a log; empty if it cannot be read."""
    try:
        with open_plain(path) as file:
            start = max(0, file.seek(0, 2) - _TAIL_BYTES)
            file.seek(start)
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = text.removesuffix("\n").split("\n")[1 if start else 0 :]
    return [shortened(printable(line), _MOST_LINE) for line in lines[-_TAIL_LINES:] if line or len(lines) > 1]


def _unknown(folder: RunFolder, observed: dict[int, Observed], record: Record | None, has_steps: bool) -> list[str]:
    """Return what the report cannot show, and why."""
    unknown = _unknown_numbers(observed, has_steps)
    if record is None:
        unknown.append("How the run ended: it is still running, or its launcher was killed.")
    if not folder.logs.is_dir():
        unknown.append("Output: no rank printed anything.")
    return unknown


def _unknown_numbers(observed: dict[int, Observed], has_steps: bool) -> list[str]:
    unknown = [] if has_steps else ["Steps and losses: the program does not call frog.record."]
    unknown.append("Phases of a step, and checkpoints: only Frog's trainer reports them.")
    if not observed:
        unknown.append("Where the ranks were, their collectives and memory: the run was not observed.")
    elif not any(seen.status and seen.status.groups for seen in observed.values()):
        unknown.append("Collectives: no rank used torch.distributed while it was observed.")
    return unknown

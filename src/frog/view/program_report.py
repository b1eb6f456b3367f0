"""The report of a program that is not Frog's: its ranks, how each ended, where it was, and the end of its log."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.core.exitcodes import describe_exit
from frog.core.files import open_plain
from frog.core.printable import printable
from frog.core.schema import shortened
from frog.runs import RecordedRun
from frog.runs.attempts import Attempt
from frog.runs.folder import RunFolder
from frog.runs.history import History
from frog.runs.observed import Observed, read_observed
from frog.runs.record import ProgramInfo, Record, RunFile
from frog.view.runs import status_of

_ENDS = {"completed": "ended with exit code 0", "running": "is running", "interrupted": "was stopped with the program"}
"""How a rank without a failure ended, by the run's status."""
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
    recorded, main = history.run, history.main
    has_steps = main is not None and len(main.steps) > 0
    status = status_of(folder, run, recorded.record)
    observed = _last_observed(folder)
    rows = _rows(recorded, observed, status)
    first = recorded.record.error.rank if recorded.record and recorded.record.error else 0
    return {
        "run": run,
        "program": program,
        "command": shlex.join(program.command),
        "status": status,
        "record": recorded.record,
        "rows": rows,
        "num_attempts": len([attempt for attempt in recorded.attempts if attempt.worlds]),
        "nodes": sorted({row.node for row in rows if row.node is not None}),
        "tails": _tails(folder, [row.rank for row in rows], first),
        "first": first,
        "step": int(main.steps[-1]) if main and has_steps else None,
        "loss": float(main.scalars["loss_mean"][-1]) if main and has_steps else None,
        "unknown": _unknown(folder, observed, recorded.record, has_steps),
        "problems": recorded.problems,
    }


def _last_observed(folder: RunFolder) -> dict[int, Observed]:
    found = read_observed(folder.path)
    return found[max(found)] if found else {}


def _rows(run: RecordedRun, observed: dict[int, Observed], status: str) -> list[RankRow]:
    attempt = run.last
    ranks = sorted({*(attempt.ranks if attempt else ()), *observed})
    return [_row(rank, attempt, observed.get(rank), status) for rank in ranks]


def _row(rank: int, attempt: Attempt | None, observed: Observed | None, status: str) -> RankRow:
    worlds = attempt.worlds if attempt else []
    pids = {own: pid for world in worlds for own, pid in zip(world.ranks, world.pids, strict=False)}
    codes = {event.rank: event.code for event in attempt.exits} if attempt else {}
    seen = observed.status if observed else None
    groups = observed.groups if observed else []
    return RankRow(
        rank=rank,
        node=attempt.node_of(rank) if attempt else None,
        pid=pids.get(rank),
        end=describe_exit(codes[rank]) if rank in codes else _ENDS.get(status, "did not report a failure"),
        line=_last_line(observed),
        collectives=", ".join(f"{one.completed:,} of {one.enqueued:,} in group {one.group}" for one in groups),
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
    found = ((rank, tail(folder.rank_log(rank))) for rank in shown)
    return [LogTail(rank, lines) for rank, lines in found if lines]


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
    found = [] if has_steps else ["Steps and losses: the program does not call frog.record."]
    found.append("Phases of a step, and checkpoints: only Frog's trainer reports them.")
    if not observed:
        found.append("Where the ranks were, their collectives and memory: the run was not observed.")
    elif not any(seen.status and seen.status.groups for seen in observed.values()):
        found.append("Collectives: no rank used torch.distributed while it was observed.")
    if record is None:
        found.append("How the run ended: it is still running, or its launcher was killed.")
    if not folder.logs.is_dir():
        found.append("Output: no rank printed anything.")
    return found

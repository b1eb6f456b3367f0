"""List the existing runs, one row each."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.errors import RunError
from frog.core.files import folders_with
from frog.core.runs import read_rank
from frog.core.runs.event_schema import EvalEvent, StepEvent
from frog.core.runs.folder import RunFolder, only_observed
from frog.core.runs.launcher_schema import WorldEvent
from frog.core.runs.observed import Status, read_observed
from frog.core.runs.read import read_launcher
from frog.core.runs.record import Record, RunFile
from frog.core.runs.run import is_active
from frog.core.terminal import printable
from frog.core.units import format_count

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class RunRow:
    """One run in `frog runs`; None where a value is unknown."""

    name: str
    status: str
    step: int | None
    num_steps: int | None
    world_size: int | None
    loss: float | None
    heldout_loss: float | None
    tokens_per_s: float | None
    created: str | None
    is_simulated: bool = False
    problem: str | None = None
    """Reason why the run cannot be read."""
    unread: tuple[str, ...] = ()
    """Unreadable heartbeats, which could not influence the status."""


def list_runs(runs: Path) -> list[RunRow]:
    """Return a row for each run folder under `runs`, the newest first."""
    rows = [_row(RunFolder(path)) for path in folders_with(runs, "run.json")]
    rows += [row_of_observed(path) for path in only_observed(runs)]
    return sorted(rows, key=lambda row: (row.created or "", row.name), reverse=True)


def _row(folder: RunFolder) -> RunRow:
    try:
        run, record = folder.read_run_json(), folder.read_record()
    except RunError as error:
        return RunRow(folder.path.name, "unreadable", None, None, None, None, None, None, None, problem=error.what)
    unread: list[str] = []
    if run.program is not None:
        return _row_of_program(folder, run, record)
    row = RunRow(
        name=folder.path.name,
        status=status_of(folder, run, record, unread),
        step=0,
        num_steps=run.count("train", "steps"),
        world_size=run.segments[-1].world_size if run.segments else None,
        loss=None,
        heldout_loss=None,
        tokens_per_s=None,
        created=run.created,
        is_simulated=run.simulated,
        unread=tuple(unread),
    )
    if record is not None:
        record = numbers_of(folder, record)
        heldout_loss = record.eval.loss if record.eval else None
        return replace(
            row, step=record.step, loss=record.loss, heldout_loss=heldout_loss, tokens_per_s=record.tokens_per_s
        )
    return _with_last_step(row, folder)


def _row_of_program(folder: RunFolder, run: RunFile, record: Record | None) -> RunRow:
    """Return the row of a program that is not Frog's: its world from the launcher, and what it recorded."""
    worlds = read_launcher(folder).of(WorldEvent)
    row = RunRow(
        name=folder.path.name,
        status=status_of(folder, run, record),
        step=None,
        num_steps=None,
        world_size=worlds[-1].world_size if worlds else None,
        loss=None,
        heldout_loss=None,
        tokens_per_s=None,
        created=run.created,
    )
    return _with_last_step(row, folder)


def row_of_observed(path: Path) -> RunRow:
    """Return the row of a program below plain torchrun or srun: only the observers of its ranks wrote here."""
    attempts = read_observed(path)
    ranks = attempts[max(attempts)].values() if attempts else ()
    statuses = [own.status for own in ranks if own.status is not None]
    states = set(map(state_of, statuses))
    began_ns = min((status.started_unix_ns for status in statuses), default=None)
    return _with_last_step(
        RunRow(
            name=path.name,
            status=next((state for state in ("failed", "running", "died", "ended") if state in states), "unreadable"),
            step=None,
            num_steps=None,
            world_size=max((status.world_size for status in statuses), default=None),
            loss=None,
            heldout_loss=None,
            tokens_per_s=None,
            created=dt.datetime.fromtimestamp(began_ns / 1e9, dt.UTC).isoformat() if began_ns else None,
        ),
        RunFolder(path),
    )


def state_of(status: Status) -> str:
    """Return the state that a rank's observer wrote last; `died` if it says that the rank runs, but too long ago."""
    return "died" if status.state == "running" and not status.is_fresh(time.time_ns()) else status.state


def numbers_of(folder: RunFolder, record: Record) -> Record:
    """Return the record with a run's numbers: the achieved one, unless its last start failed at a later step."""
    achieved = folder.read_achieved()
    return record if achieved is None or achieved.step < record.step else achieved


def _with_last_step(row: RunRow, folder: RunFolder) -> RunRow:
    """Fill in the numbers of a run without a record, from the events of the main rank."""
    ranks = folder.event_ranks()
    events = read_rank(folder, ranks[0]) if ranks else None
    step, score = (events.last(StepEvent), events.last(EvalEvent)) if events else (None, None)
    if step is not None:
        loss = step.loss if step.loss_mean is None else step.loss_mean
        row = replace(row, step=step.step, loss=loss, tokens_per_s=step.tokens_per_s)
    return replace(row, heldout_loss=score.loss if score else None)


def status_of(folder: RunFolder, run: RunFile, record: Record | None, problems: list[str] | None = None) -> str:
    """Return a run's status from its record; without one: `imported` if it never trained, `running` or `died`.

    Unreadable heartbeats are added to `problems`.
    """
    if record is not None:
        return record.status
    if not run.segments and run.program is None:
        return "imported"
    return "running" if is_active(folder, problems) else "died"


def runs_table(rows: list[RunRow]) -> Table:
    """Return the rows as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    styles = {"completed": "green", "ended": "green", "running": "cyan", "interrupted": "yellow", "imported": "dim"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("name", "status"):
        table.add_column(title, no_wrap=True)
    for title in ("step", "world", "loss", "held-out", "tokens/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("when", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(printable(row.name)),
            Text(row.status + ", simulated" * row.is_simulated, style=styles.get(row.status, "red")),
            _steps(row),
            str(row.world_size or ""),
            _number(row.loss, "{:.3f}".format),
            _number(row.heldout_loss, "{:.3f}".format),
            _number(row.tokens_per_s, format_count),
            when(row.created, "%m-%d %H:%M"),
        )
    return table


def _steps(row: RunRow) -> str:
    return "" if row.step is None and row.num_steps is None else f"{row.step or 0}/{row.num_steps or '?'}"


def _number(value: float | None, form: Any) -> str:
    return "" if value is None else str(form(value))


def when(created: str | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Format an ISO time in the reader's time zone."""
    if not created:
        return ""
    try:
        return dt.datetime.fromisoformat(created).astimezone().strftime(form)
    except ValueError:
        return created

"""The runs there are, one row each."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frog.core.env import host_name
from frog.core.errors import RunError
from frog.core.processes import is_alive
from frog.core.runfolder import RunFolder
from frog.core.units import format_count
from frog.events import RunEvents, read_rank

if TYPE_CHECKING:
    from rich.table import Table

_QUIET_S = 120.0
"""A run of which nothing was heard for longer, and whose processes cannot be asked, is taken for dead."""


@dataclass
class RunRow:
    """What `frog runs` says of one run; None where nothing is known."""

    name: str
    status: str
    step: int | None
    num_steps: int | None
    world_size: int | None
    loss: float | None
    heldout_loss: float | None
    tokens_per_s: float | None
    created: str | None
    problem: str | None = None
    """Why the run cannot be read, if it cannot."""


def list_runs(runs: Path) -> list[RunRow]:
    """A row for each run folder under `runs`, the newest first."""
    folders = [RunFolder(entry.parent) for entry in runs.glob("*/run.json")] if runs.is_dir() else []
    return sorted((_row(folder) for folder in folders), key=lambda row: (row.created or "", row.name), reverse=True)


def _row(folder: RunFolder) -> RunRow:
    try:
        run, record = folder.read_run(), folder.read_record()
        row = _row_without_record(folder, run) if record is None else _row_of_record(folder, run, record)
    except RunError as error:
        row = _unreadable(folder, error.what)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{folder.path}: run.json or record.json is not as Frog writes it: {error!r}"
        row = _unreadable(folder, what)
    return row


def _unreadable(folder: RunFolder, problem: str) -> RunRow:
    return RunRow(folder.path.name, "unreadable", None, None, None, None, None, None, None, problem)


def _row_of_record(folder: RunFolder, run: dict[str, Any], record: dict[str, Any]) -> RunRow:
    return RunRow(
        name=folder.path.name,
        status=record["status"],
        step=record.get("step"),
        num_steps=run["config"]["train"]["steps"],
        world_size=_world_size(run),
        loss=record.get("loss"),
        heldout_loss=(record.get("eval") or {}).get("loss"),
        tokens_per_s=record.get("tokens_per_s"),
        created=run.get("created"),
    )


def _row_without_record(folder: RunFolder, run: dict[str, Any]) -> RunRow:
    ranks = folder.event_ranks()
    events = read_rank(folder, ranks[0]) if ranks else RunEvents({}).main
    steps, evals = events.of("step"), events.of("eval")
    return RunRow(
        name=folder.path.name,
        status=unrecorded_status(folder, run),
        step=steps[-1]["step"] if steps else 0,
        num_steps=run["config"]["train"]["steps"],
        world_size=_world_size(run),
        loss=steps[-1]["loss_mean"] if steps else None,
        heldout_loss=evals[-1]["loss"] if evals else None,
        tokens_per_s=steps[-1]["tokens_per_s"] if steps else None,
        created=run.get("created"),
    )


def _world_size(run: dict[str, Any]) -> int | None:
    segments = run.get("segments") or []
    return segments[-1]["world_size"] if segments else None


def unrecorded_status(folder: RunFolder, run: dict[str, Any]) -> str:
    """What a run without a record is: `imported`, if it never trained; `running` or `died`, by its first rank's process
    if that was on this machine, else by when it was last heard of."""
    if not run.get("segments"):
        return "imported"
    ranks = folder.event_ranks()
    starts = read_rank(folder, ranks[0]).of("start") if ranks else []
    if starts and starts[-1]["host"] == host_name():
        return "running" if is_alive(starts[-1]["pid"]) else "died"
    said = [folder.rank_events(rank).stat().st_mtime for rank in ranks] or [folder.run_json.stat().st_mtime]
    return "running" if time.time() - max(said) < _QUIET_S else "died"


def runs_table(rows: list[RunRow]) -> Table:
    """The rows as a table for the terminal."""
    from rich.table import Table
    from rich.text import Text

    styles = {"completed": "green", "running": "cyan", "interrupted": "yellow", "imported": "dim"}
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("name", "status"):
        table.add_column(title, no_wrap=True)
    for title in ("step", "world", "loss", "held-out", "tokens/s"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("when", no_wrap=True)
    for row in rows:
        table.add_row(
            Text(row.name),
            Text(row.status, style=styles.get(row.status, "red")),
            f"{row.step if row.step is not None else '?'}/{row.num_steps}",
            str(row.world_size or ""),
            _number(row.loss, "{:.3f}".format),
            _number(row.heldout_loss, "{:.3f}".format),
            _number(row.tokens_per_s, format_count),
            when(row.created, "%m-%d %H:%M"),
        )
    return table


def _number(value: float | None, form: Any) -> str:
    return "" if value is None else str(form(value))


def when(created: str | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """An ISO time in the reader's own time zone."""
    if not created:
        return ""
    try:
        return dt.datetime.fromisoformat(created).astimezone().strftime(form)
    except ValueError:
        return created

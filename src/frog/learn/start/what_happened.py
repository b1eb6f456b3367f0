"""What a run of `first.py` did, read from its folder: the numbers that each rank printed, and who stopped and why."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import ExitEvent, WorldEvent
from frog.core.runs.observed import Observed, read_observed
from frog.core.runs.read import read_launcher

_PRINTED = re.compile(r"step (\d+)  samples (\[[\d, ]*\])  loss (\S+)  weight (\S+)$", re.MULTILINE)

COLUMNS = ("samples", "loss", "weight")
"""The numbers that `first.py` prints in each step, in this order."""

Row = dict[str, str]
"""What one rank printed in one step, by column."""


@dataclass(frozen=True)
class Noticed:
    """An exception that ended a rank, and the user's line that raised it."""

    text: str
    line: str
    """Such as `first.py:23`."""


class WhatHappened:
    """A finished or running run of `first.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = RunFolder(folder)

    @property
    def name(self) -> str:
        return self._folder.path.name

    def rows(self, rank: int) -> dict[int, Row]:
        """Return what a rank printed, by step."""
        log = self._folder.path / "logs" / f"rank_{rank}" / "train.log"
        text = log.read_text(errors="replace") if log.is_file() else ""
        return {int(step): dict(zip(COLUMNS, cells, strict=True)) for step, *cells in _PRINTED.findall(text)}

    def steps(self) -> list[int]:
        """Return the steps that both ranks completed."""
        return sorted(self.rows(0).keys() & self.rows(1).keys())

    def equal_columns(self) -> set[str]:
        """Return the columns that agree between the ranks in every step; none if no step is complete."""
        rows, steps = [self.rows(rank) for rank in (0, 1)], self.steps()
        return {column for column in COLUMNS if steps and all(rows[0][s][column] == rows[1][s][column] for s in steps)}

    def pids(self) -> list[int]:
        """Return the ranks' process ids, in rank order; empty before the ranks start."""
        worlds = read_launcher(self._folder).of(WorldEvent)
        return list(worlds[-1].pids) if worlds else []

    def killed(self) -> int | None:
        """Return the first rank that SIGKILL ended, according to the launcher."""
        exits = read_launcher(self._folder).of(ExitEvent)
        return next((event.rank for event in exits if event.code == -signal.SIGKILL), None)

    def failed(self) -> set[int]:
        """Return the ranks that ended with an error, according to the launcher."""
        return {event.rank for event in read_launcher(self._folder).of(ExitEvent)}

    def num_collectives(self, rank: int) -> int:
        """Return how many collectives a rank called."""
        observed = self._observed(rank)
        return sum(group.enqueued for group in observed.groups) if observed else 0

    def noticed(self, rank: int) -> Noticed | None:
        """Return the exception that ended a rank, if one did."""
        observed = self._observed(rank)
        error = observed.error if observed else None
        if error is None:
            return None
        line = f"{Path(error.line.file).name}:{error.line.line}" if error.line else "an unknown line"
        return Noticed(f"{error.type}: {_main_clause(error.message)}", line)

    def _observed(self, rank: int) -> Observed | None:
        attempts = read_observed(self._folder.path)
        return attempts[max(attempts)].get(rank) if attempts else None


def newest_run(runs: Path, before: set[str]) -> WhatHappened | None:
    """Return the run that a command has just created: the one that is not among `before`."""
    new = [folder for folder in runs.glob("*") if folder.name not in before and (folder / "run.json").is_file()]
    return WhatHappened(max(new, key=lambda folder: (folder / "run.json").stat().st_mtime_ns)) if new else None


def _main_clause(message: str) -> str:
    """Return the first sentence of gloo's message, without its place in gloo's source."""
    first = message.strip().partition(". ")[0].splitlines()
    return re.sub(r"^\[[^]]*\] ", "", first[0]) if first else "no message"

"""A rank's output for people: lines in its log, and for rank 0 the same lines and a progress bar on screen.

A log line is `2026-11-21 10:51:38.123 rank 2 | text`. The time is UTC, as in run.json, so that lines from nodes in
different time zones sort together. The remaining lines of a multi-line message have no prefix.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from frog.core.console import console
from frog.core.units import time_text


class RankLog:
    """Writes lines to `logs/rank_N/train.log`; on rank 0 also to the screen, above the progress bar."""

    def __init__(self, path: Path | None, rank: int, show: bool) -> None:
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._rank = rank
        self._console = console() if show else None
        self._progress: Progress | None = None

    def say(self, line: str) -> None:
        """Write a line to the log and the screen."""
        self.note(line)
        if self._console is not None:
            self._console.print(line, soft_wrap=not self._console.is_terminal)  # a pipe gets whole lines

    def note(self, line: str) -> None:
        """Write a line to the log only."""
        if self._file is not None:
            self._file.write(f"{time_text()} rank {self._rank} | {line}\n")

    def start_bar(self, done: int, total: int) -> None:
        """Show the progress bar if the output is a terminal and the bar is not shown yet."""
        if self._progress is None and self._console is not None and self._console.is_terminal:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._progress.add_task("training", completed=done, total=total, note="")
            self._progress.start()

    def advance(self, done: int, note: str) -> None:
        """Update the progress bar."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, note=note)

    def __enter__(self) -> RankLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the log and remove the progress bar."""
        if self._progress is not None:
            self._progress.stop()
        if self._file is not None:
            self._file.close()

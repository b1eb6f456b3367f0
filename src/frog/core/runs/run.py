"""A run as recorded in its folder: the entry point for views, diagnoses and tests.

    run = read_run(RunFolder(Path("runs/demo")))
    for attempt in run.attempts:
        for rank, worker in attempt.workers.items():
            waited_ns = sum(event.wait_ns for event in worker.of(CollectiveEvent))
            print(f"rank {rank}, from step {worker.start.step} to {worker.last_step}: waited {waited_ns / 1e9:.2f} s")

Missing or damaged files do not raise: their content is absent, and `problems` lists them.
docs/observe/run-folder.md documents all files.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from frog.core.env import host_name
from frog.core.errors import RunError
from frog.core.processes import is_alive
from frog.core.runs.attempts import Attempt, Worker, cut, last_workers, sort_attempts
from frog.core.runs.changes import follow_processes
from frog.core.runs.event_schema import Beat
from frog.core.runs.folder import RunFolder, is_only_observed
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.launcher_schema import AnyLauncherEvent, LauncherEndEvent, LaunchEvent
from frog.core.runs.read import RankEvents, read_launcher, read_rank
from frog.core.runs.record import Record, RunFile

FRESH_S = 5.0
"""Heartbeats come twice a second: a rank with an older one has stopped, even on a busy machine."""

_QUIET_S = 120.0
"""Ranks and launcher are never all silent for this long; even starting takes less."""


@dataclass
class RecordedRun:
    """The complete content of a run folder."""

    folder: RunFolder
    file: RunFile | None
    """run.json, if it can be read."""
    record: Record | None
    """How the run ended, from record.json or attempt.json; None if missing or unreadable."""
    attempts: list[Attempt]
    """Each start of all ranks, in chronological order."""
    launcher: list[AnyLauncherEvent]
    ranks: dict[int, RankEvents] = field(default_factory=dict)
    """Events of each rank in all attempts, in order."""
    problems: list[str] = field(default_factory=list)
    """Descriptions of unreadable content."""

    @property
    def is_simulated(self) -> bool:
        """True if `frog plan simulate` calculated the events, and nothing ran."""
        return self.file is not None and self.file.simulated

    @property
    def main(self) -> RankEvents:
        """Events of rank 0, for values that are equal on all ranks."""
        return self.ranks.get(0, RankEvents())

    @property
    def last(self) -> Attempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    def setting(self, *keys: str, default: Any = None) -> Any:
        """Return a field of the run's configuration."""
        return self.file.setting(*keys, default=default) if self.file else default

    def count(self, *keys: str) -> int | None:
        """Return a field of the configuration if it is a positive integer, else None."""
        return self.file.count(*keys) if self.file else None


def read_run(folder: RunFolder) -> RecordedRun:
    """Read the complete run."""
    ranks = {rank: read_rank(folder, rank) for rank in folder.event_ranks()}
    workers = [worker for rank, said in ranks.items() for worker in cut(rank, said.events)]
    run = assemble(folder, workers, [problem for said in ranks.values() for problem in said.problems])
    run.ranks = ranks
    return run


def assemble(folder: RunFolder, workers: list[Worker], problems: list[str]) -> RecordedRun:
    """Build a run from the ranks' events: read its other files and sort everything into attempts."""
    launcher = read_launcher(folder)
    unread: list[str] = []
    attempts = sort_attempts(launcher.events, last_workers(workers, unread), _read_beats(folder, unread))
    follow_processes(attempts)
    run = RecordedRun(folder, None, None, attempts, launcher.events, problems=[*launcher.problems, *problems, *unread])
    if is_only_observed(folder.path):
        return run
    if not folder.run_json.exists():
        run.problems.append(f"{folder.run_json}: missing, so the run never reached its first step")
        return run
    try:
        run.file = folder.read_run_json()
    except RunError as error:
        run.problems.append(error.what)
    try:
        run.record = folder.read_record()
    except RunError as error:
        run.problems.append(error.what)
    return run


def _read_beats(folder: RunFolder, problems: list[str]) -> dict[str, Beat]:
    paths = [*sorted(folder.heartbeats.glob("attempt_*/rank_*.json")), *sorted(folder.heartbeats.glob("rank_*.json"))]
    beats = {str(path.relative_to(folder.path)): read_heartbeat(path, problems) for path in paths}
    return {file: beat for file, beat in beats.items() if beat is not None}


def is_active(folder: RunFolder, problems: list[str] | None = None) -> bool:
    """True if the run is active: its launcher is alive, or a rank has a fresh heartbeat.

    The launcher's process id alone is not enough: another process may have it now, or it may be from another machine.
    Adds unreadable heartbeats to `problems`.
    """
    launcher = read_launcher(folder).events
    last = next((event for event in reversed(launcher) if isinstance(event, LaunchEvent | LauncherEndEvent)), None)
    beats = list(_last_beats(folder, problems))
    if isinstance(last, LaunchEvent) and is_alive(last.pid):
        signs = [said.unix_ns for said in (launcher[-1], *beats)]
        if not beats:  # a program without heartbeats: its launcher touches its events
            with contextlib.suppress(OSError):
                signs.append(folder.launcher_events.stat().st_mtime_ns)
        if time.time_ns() - max(signs) < _QUIET_S * 1e9:
            return True
    since_ns = last.unix_ns if last is not None else 0
    return any(_is_living(beat) and beat.unix_ns > since_ns for beat in beats)


def has_living_rank(folder: RunFolder) -> bool:
    """True if a rank has a fresh heartbeat."""
    return any(map(_is_living, _last_beats(folder)))


def _is_living(beat: Beat) -> bool:
    return beat.status == "running" and is_fresh(beat) and not _is_dead(beat)


def _last_beats(folder: RunFolder, problems: list[str] | None = None) -> Iterator[Beat]:
    for rank in folder.heartbeat_ranks():
        beat = read_heartbeat(folder.heartbeat(rank), problems)
        if beat is not None:
            yield beat


def _is_dead(beat: Beat) -> bool:
    """True if the heartbeat's process has ended; unknown, and so False, on another machine."""
    return beat.host == host_name() and not is_alive(beat.pid)


def is_fresh(beat: Beat, now_ns: int | None = None) -> bool:
    """True if a heartbeat is recent."""
    return (now_ns or time.time_ns()) - beat.unix_ns < FRESH_S * 1e9

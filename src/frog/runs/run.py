"""A run as its folder records it: the one way in for a view, a diagnosis, a test.

    run = read_run(RunFolder(Path("runs/demo")))
    for attempt in run.attempts:
        for rank, worker in attempt.workers.items():
            waited_ns = sum(event.wait_ns for event in worker.of(CollectiveEvent))
            print(f"rank {rank}, from step {worker.start.step} to {worker.last_step}: waited {waited_ns / 1e9:.2f} s")

Nothing here raises for a missing or damaged file: what cannot be read is absent, and `problems` says so.
docs/run-folder.md has the whole of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from frog.core.env import host_name
from frog.core.errors import RunError
from frog.core.processes import is_alive
from frog.runs.attempts import Attempt, Worker, cut, last_workers, sort_attempts
from frog.runs.changes import follow_processes
from frog.runs.folder import RunFolder
from frog.runs.heartbeat import read_heartbeat
from frog.runs.launcher_schema import AnyLauncherEvent, LauncherEndEvent, LaunchEvent
from frog.runs.read import RankEvents, read_launcher, read_rank
from frog.runs.record import Record, RunFile
from frog.runs.schema import Beat

FRESH_S = 5.0
"""A heartbeat comes twice a second: one older than this has stopped, also on a busy machine."""

_QUIET_S = 120.0
"""Ranks and their launcher together are silent for so long only while they start, and then for less."""


@dataclass
class RecordedRun:
    """All that a run's folder says of it."""

    folder: RunFolder
    file: RunFile | None
    """run.json, if it can be read."""
    record: Record | None
    """record.json, if there is one that can be read: how the run ended."""
    attempts: list[Attempt]
    """Each start of all ranks, in order of time."""
    launcher: list[AnyLauncherEvent]
    ranks: dict[int, RankEvents] = field(default_factory=dict)
    """What each rank said in all attempts, one after the other."""
    problems: list[str] = field(default_factory=list)
    """What could not be read."""

    @property
    def main(self) -> RankEvents:
        """Rank 0, which speaks for all where all agree."""
        return self.ranks.get(0, RankEvents())

    @property
    def last(self) -> Attempt | None:
        """The last attempt."""
        return self.attempts[-1] if self.attempts else None

    def setting(self, *keys: str, default: Any = None) -> Any:
        """A field of the run's configuration."""
        return self.file.setting(*keys, default=default) if self.file else default

    def count(self, *keys: str) -> int | None:
        """A field of it that counts from 1."""
        return self.file.count(*keys) if self.file else None


def read_run(folder: RunFolder) -> RecordedRun:
    """Read everything."""
    ranks = {rank: read_rank(folder, rank) for rank in folder.event_ranks()}
    workers = [worker for rank, said in ranks.items() for worker in cut(rank, said.events)]
    run = assemble(folder, workers, [problem for said in ranks.values() for problem in said.problems])
    run.ranks = ranks
    return run


def assemble(folder: RunFolder, workers: list[Worker], problems: list[str]) -> RecordedRun:
    """A run of which the ranks' events have been read: they are sorted into attempts with all the rest."""
    launcher = read_launcher(folder)
    unread: list[str] = []
    attempts = sort_attempts(launcher.events, last_workers(workers, unread), _read_beats(folder, unread))
    follow_processes(attempts)
    run = RecordedRun(folder, None, None, attempts, launcher.events, problems=[*launcher.problems, *problems, *unread])
    if not folder.run_json.exists():
        run.problems.append(f"{folder.run_json}: missing, so the run never came to its first step")
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
    found = {str(path.relative_to(folder.path)): read_heartbeat(path, problems) for path in paths}
    return {file: beat for file, beat in found.items() if beat is not None}


def is_under_way(folder: RunFolder, problems: list[str] | None = None) -> bool:
    """Whether the run still goes on: its launcher lives, or a rank's heart has just beaten.

    The launcher's process id alone does not say: it may be another's by now, or of another machine. Which heartbeats
    cannot be read, so that they say nothing, is added to `problems`.
    """
    launcher = read_launcher(folder).events
    last = next((event for event in reversed(launcher) if isinstance(event, LaunchEvent | LauncherEndEvent)), None)
    beats = list(_last_beats(folder, problems))
    if isinstance(last, LaunchEvent) and is_alive(last.pid):
        sign_ns = max(said.unix_ns for said in (launcher[-1], *beats))
        if time.time_ns() - sign_ns < _QUIET_S * 1e9:
            return True
    since_ns = last.unix_ns if last is not None else 0
    return any(_is_living(beat) and beat.unix_ns > since_ns for beat in beats)


def has_living_rank(folder: RunFolder) -> bool:
    """Whether a rank's heart has just beaten."""
    return any(map(_is_living, _last_beats(folder)))


def _is_living(beat: Beat) -> bool:
    return beat.status == "running" and is_fresh(beat) and not _is_dead(beat)


def _last_beats(folder: RunFolder, problems: list[str] | None = None) -> Iterator[Beat]:
    for rank in folder.heartbeat_ranks():
        beat = read_heartbeat(folder.heartbeat(rank), problems)
        if beat is not None:
            yield beat


def _is_dead(beat: Beat) -> bool:
    """Whether a heartbeat is of a process that is no more; of another machine nobody can say."""
    return beat.host == host_name() and not is_alive(beat.pid)


def is_fresh(beat: Beat, now_ns: int | None = None) -> bool:
    """Whether a heartbeat is of just now."""
    return (now_ns or time.time_ns()) - beat.unix_ns < FRESH_S * 1e9

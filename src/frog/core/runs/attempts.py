"""A run as a list of attempts; an attempt is one start of all ranks, until they end or restart.

A run that was restarted or resumed has several attempts; each rank has a worker in each attempt. This module alone
assigns the events of ranks and launcher, and the heartbeats, to attempts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from frog.core.runs.event_schema import (
    Beat,
    CollectiveEvent,
    EndEvent,
    ErrorEvent,
    RankEvent,
    SpanEvent,
    StartEvent,
    Status,
    StepEvent,
)
from frog.core.runs.launcher_schema import (
    AnyLauncherEvent,
    ExitEvent,
    HangEvent,
    LauncherEndEvent,
    LaunchEvent,
    LeftOutEvent,
    NodeEvent,
    ReplaceEvent,
    StallEvent,
    WorldEvent,
)
from frog.core.runs.read import EventList

_MOST_STARTS = 1_000
"""Maximum starts per launcher and per rank; a run with more shows its last ones."""
_MOST_UNORDERED = 50
"""Events are written when they end; the last event to end is among this many lines."""


@dataclass
class Worker(EventList[RankEvent]):
    """One process of one rank: its events, from its start to its end."""

    rank: int = 0

    @cached_property
    def start(self) -> StartEvent | None:
        """The worker's start event; None if it ended before writing one."""
        return self.last(StartEvent)

    @property
    def error(self) -> ErrorEvent | None:
        """The worker's error, if it reported one."""
        return self.last(ErrorEvent)

    @property
    def status(self) -> Status | None:
        """Final status, or None without an end event."""
        end = self.last(EndEvent)
        return end.status if end else None

    @property
    def last_step(self) -> int:
        """Last completed step, or the step it started from."""
        taken = self.last(StepEvent)
        if taken:
            return taken.step
        return self.start.step if self.start else 0

    @property
    def last_ns(self) -> int | None:
        """Time of its last event, on its machine's monotonic clock."""
        return last_ns(self.events[-_MOST_UNORDERED:])


def last_ns(events: Iterable[RankEvent]) -> int | None:
    """Return the latest time in the events, on the monotonic clock."""
    times = (getattr(event, "end_ns", None) or getattr(event, "mono_ns", None) for event in events)
    return max((ns for ns in times if ns is not None), default=None)


def cut(rank: int, events: list[RankEvent]) -> list[Worker]:
    """Split a rank's events into workers.

    A worker ends with its end event, or where the next one begins. A resumed worker has collectives before its start
    event, and counts them from 0 again.
    """
    begins, has_started = [0], False
    for index, event in enumerate(events):
        if isinstance(event, SpanEvent | StepEvent):  # the vast majority
            continue
        if isinstance(event, EndEvent):
            begins.append(index + 1)
            has_started = False
        elif isinstance(event, StartEvent):
            if has_started:
                begins.append(index)
            has_started = True
        elif isinstance(event, CollectiveEvent) and event.seq == 0:
            earlier = events[begins[-1] : index]
            said_ns = last_ns(earlier[-_MOST_UNORDERED:]) or 0
            if event.start_ns >= said_ns and any(isinstance(other, CollectiveEvent) for other in earlier):
                begins.append(index)
                has_started = False
    return [Worker(events[begin:end], rank) for begin, end in itertools.pairwise([*begins, len(events)]) if end > begin]


@dataclass
class Attempt:
    """One start of all ranks."""

    number: int | None
    """The launcher's number of the attempt: previous restarts. None without a launcher."""
    launch: LaunchEvent | None
    """The launch event of the launcher."""
    began_ns: int | None = None
    workers: dict[int, Worker] = field(default_factory=dict)
    """Workers by rank."""
    beats: dict[int, Beat] = field(default_factory=dict)
    """Last heartbeat of each rank, unless a later launch has overwritten it."""
    beat_files: dict[int, str] = field(default_factory=dict)
    """Path of each heartbeat, relative to the run folder."""
    worlds: list[WorldEvent] = field(default_factory=list)
    """One event per node, written when its agent started the ranks."""
    exits: list[ExitEvent] = field(default_factory=list)
    replacements: list[ReplaceEvent] = field(default_factory=list)
    hangs: list[HangEvent] = field(default_factory=list)
    stalls: list[StallEvent] = field(default_factory=list)
    left_out: list[LeftOutEvent] = field(default_factory=list)
    nodes: list[NodeEvent] = field(default_factory=list)
    """Ends of node agents."""
    end: LauncherEndEvent | None = None
    """The launcher's end event, if this was its last attempt."""

    @property
    def pids(self) -> set[int]:
        """Process ids of the ranks, from the launcher."""
        return {pid for world in self.worlds for pid in world.pids}

    @property
    def ranks(self) -> list[int]:
        """All ranks of this attempt, including ranks that never reported."""
        sizes = [world.world_size for world in self.worlds] + [beat.world_size for beat in self.beats.values()]
        sizes += [worker.start.world_size for worker in self.workers.values() if worker.start]
        known = {*self.workers, *self.beats, *(event.rank for event in self.exits)}
        size = max(sizes, default=0)
        return [*range(size), *sorted(rank for rank in known if rank >= size)]

    def node_of(self, rank: int) -> int | None:
        """Return the node of a rank."""
        for world in self.worlds:
            if rank in world.ranks:
                return world.node_rank
        worker = self.workers.get(rank)
        said = (worker.start if worker else None) or self.beats.get(rank)
        return said.node_rank if said else None

    def unix_ns(self, rank: int, mono_ns: int | None) -> int | None:
        """Convert a rank's monotonic time to Unix time."""
        worker, beat = self.workers.get(rank), self.beats.get(rank)
        if mono_ns is None:
            return None
        if worker and worker.start:
            return mono_ns - worker.start.mono_ns + worker.start.unix_ns
        return mono_ns - beat.beat_ns + beat.unix_ns if beat else None

    def last_sign_ns(self, rank: int) -> int | None:
        """Return the Unix time of a rank's last event or heartbeat."""
        worker, beat = self.workers.get(rank), self.beats.get(rank)
        said = self.unix_ns(rank, worker.last_ns) if worker else None
        return max((ns for ns in (said, beat.unix_ns if beat else None) if ns is not None), default=None)


def last_workers(workers: Iterable[Worker], problems: list[str]) -> list[Worker]:
    """Keep the last workers of each rank; report omitted ones in `problems`. `workers` are ordered by rank."""
    last: list[Worker] = []
    for rank, of_rank in itertools.groupby(workers, lambda worker: worker.rank):
        all_of_rank = list(of_rank)
        if len(all_of_rank) > _MOST_STARTS:
            problems.append(f"rank {rank}: showing the last {_MOST_STARTS} of {len(all_of_rank)} starts")
        last += all_of_rank[-_MOST_STARTS:]
    return last


def sort_attempts(
    launcher: Iterable[AnyLauncherEvent], workers: Iterable[Worker], beats: Mapping[str, Beat]
) -> list[Attempt]:
    """Return the attempts of a run, in chronological order.

    workers: for each rank in order of time; beats: by file name relative to the run folder, archived heartbeats before
    the last ones.
    """
    attempts = _launched(launcher)[-_MOST_STARTS:]
    _add_workers(attempts, list(workers))
    _add_beats(attempts, beats)
    return attempts


def _launched(launcher: Iterable[AnyLauncherEvent]) -> list[Attempt]:
    """Return the attempts that the launcher reports, each with its launcher events."""
    attempts: list[Attempt] = []
    launch: LaunchEvent | None = None
    for event in launcher:
        if isinstance(event, LaunchEvent):
            launch = event
            attempts.append(Attempt(None, launch, event.unix_ns))  # the number follows with its first world
            continue
        number = getattr(event, "attempt", None)
        if not attempts or attempts[-1].launch is not launch:
            attempts.append(Attempt(number, launch, event.unix_ns))
        elif number is not None and attempts[-1].number is None:
            attempts[-1].number = number
        elif number is not None and number > (attempts[-1].number or 0):
            attempts.append(Attempt(number, launch, event.unix_ns))
        of_launch = (own for own in reversed(attempts) if own.launch is launch and own.number == number)
        _add_event(next(of_launch, attempts[-1]), event)
    return attempts


def _add_event(attempt: Attempt, event: AnyLauncherEvent) -> None:
    match event:
        case WorldEvent():
            attempt.worlds.append(event)
        case ExitEvent():
            attempt.exits.append(event)
        case ReplaceEvent():
            attempt.replacements.append(event)
        case HangEvent():
            attempt.hangs.append(event)
        case StallEvent():
            attempt.stalls.append(event)
        case LeftOutEvent():
            attempt.left_out.append(event)
        case NodeEvent():
            attempt.nodes.append(event)
        case LauncherEndEvent():
            attempt.end = event


def _add_workers(attempts: list[Attempt], workers: list[Worker]) -> None:
    """Assign every worker to its attempt; workers without a launcher form new attempts."""
    begun = [(worker, worker.start) for worker in workers if worker.start is not None]
    for worker, start in sorted(begun, key=lambda pair: pair[1].unix_ns):
        own = _attempt_of(attempts, worker.rank, start)
        if own is None:
            own = Attempt(None, None, start.unix_ns)
            attempts.append(own)
        own.workers[worker.rank] = worker
    attempts.sort(key=lambda attempt: attempt.began_ns or 0)
    for _, of_rank in itertools.groupby(workers, lambda worker: worker.rank):
        _add_refused(attempts, list(of_rank))


def _add_refused(attempts: list[Attempt], workers: list[Worker]) -> None:
    """Assign workers without a start event, and so without a time, to the last attempt before their rank's next one."""
    before = len(attempts)
    for worker in reversed(workers):
        if worker.start is not None:
            before = next(number for number, own in enumerate(attempts) if own.workers.get(worker.rank) is worker)
            continue
        if before and worker.rank not in attempts[before - 1].workers:
            before -= 1
        else:
            attempts.insert(before, Attempt(None, None))
        attempts[before].workers[worker.rank] = worker


def _attempt_of(attempts: list[Attempt], rank: int, start: StartEvent) -> Attempt | None:
    free = [attempt for attempt in reversed(attempts) if rank not in attempt.workers]
    for attempt in free:
        if attempt.launch is not None and start.pid in attempt.pids:
            return attempt
    for attempt in free:
        since_ns = start.unix_ns - (attempt.began_ns or 0)
        if attempt.launch is None:
            others = [other.start for other in attempt.workers.values() if other.start]
            if all((o.world_size, o.step) == (start.world_size, start.step) for o in others):
                return attempt
        elif not attempt.pids and since_ns >= 0 and (attempt.end is None or start.unix_ns <= attempt.end.unix_ns):
            return attempt
    return None


def _add_beats(attempts: list[Attempt], beats: Mapping[str, Beat]) -> None:
    for file, beat in beats.items():
        own = next((attempt for attempt in reversed(attempts) if _is_of(beat, attempt)), None)
        if own is None and file.count("/") > 1:  # archived by a launch whose launcher events are missing
            continue
        if own is None:
            if attempts and (attempts[-1].began_ns or 0) <= beat.unix_ns:
                own = attempts[-1]
            else:
                own = Attempt(beat.attempt, None, beat.unix_ns)
                attempts.append(own)
        own.beats[beat.rank], own.beat_files[beat.rank] = beat, file


def _is_of(beat: Beat, attempt: Attempt) -> bool:
    worker = attempt.workers.get(beat.rank)
    if worker is not None and worker.start is not None:
        return worker.start.pid == beat.pid
    return beat.pid in attempt.pids

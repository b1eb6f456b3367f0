"""The watchdogs of a world: find ranks that make no progress. launch/world.py and launch/stalls.py act on it.

In a run of Frog's own, each rank has heartbeats: `find_hangs` returns the ranks that are silent or stuck. Each node's
agent (launch/torchrun/agent.py), not a watchdog, reports ended ranks to launch/world.py.

A third-party program has none, so `ProgramWatch` decides from what its ranks do whether they make progress. It is a
state machine without processes or clocks. It receives a snapshot of every rank (`take_snapshots`, from its observer's
status and its process), with the time, and decides:

    healthy ──> computing   a rank computes for long while others wait in a collective: reported, not ended
       │  └───> hang        no rank has finished a collective for too long, and none of them computes
       └──────> left        the same, and a rank has ended that the others wait for

A finished collective returns the world to `healthy`. A rank with a pending collective waits, whatever its processor
time, since NCCL spins while it waits; unless it moves data, as over a slow link. If every rank has enqueued the same
collective, torch completes it in the background, so a world in which all ranks wait does not continue by itself. A rank
that polls, its main thread mostly in a line that sleeps, is idle unless its other threads or its children compute.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import psutil

from frog.core.processes import is_alive
from frog.core.runs.event_schema import Beat
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.observed import CodeLine, Status


@dataclass(frozen=True)
class Hang:
    """A rank that makes no progress."""

    rank: int
    """The rank that it was started as; its heartbeat file may have another rank by now."""
    pid: int
    kind: str
    """"silent": no heartbeat, so the process is stopped or blocked; "stuck": heartbeats, but waits in a collective."""
    waited_s: float
    heartbeat: Beat

    def __str__(self) -> str:
        beat = self.heartbeat
        place = f"step {beat.step}" + (f", {beat.phase}" if beat.phase else "")
        if self.kind == "silent":
            return f"rank {self.rank} (pid {self.pid}) sent no heartbeat for {self.waited_s:.0f} s, after {place}"
        op = beat.open[0].op
        return f"rank {self.rank} (pid {self.pid}) has waited {self.waited_s:.0f} s in {op} ({place})"


def find_hangs(folder: RunFolder, pids: dict[int, int], deadline_s: float, stuck_s: float) -> Iterator[Hang]:
    """Yield those of the given ranks that have been silent or stuck for longer than allowed.

    A rank without a heartbeat is still starting. The agent reports a rank that has ended, possibly late, since it ends
    the others first. A rank is stuck after `stuck_s`, or twice its collectives' timeout if that is longer; the same
    limit applies to a rank that does not exit after its last step.
    """
    now_ns = time.monotonic_ns()
    ranks = {pid: rank for rank, pid in pids.items()}
    for place in folder.heartbeat_ranks():
        beat = read_heartbeat(folder.heartbeat(place))
        if beat is None or beat.pid not in ranks or not is_alive(beat.pid):
            continue
        rank, pid = ranks[beat.pid], beat.pid
        silent_s = (now_ns - beat.beat_ns) / 1e9
        allowed_s = max(stuck_s, 2 * beat.timeout_s)
        if silent_s > (deadline_s if beat.status == "running" else allowed_s):
            yield Hang(rank, pid, "silent", silent_s, beat)
        elif beat.open and (now_ns - beat.open[0].start_ns) / 1e9 > allowed_s:
            yield Hang(rank, pid, "stuck", (now_ns - beat.open[0].start_ns) / 1e9, beat)


# ---- third-party programs --------------------------------------------------------------------------------------------

_WINDOW_S = 1.0
_GAP_S = 5.0
"""After a longer time without a look, the machine or the launcher was suspended, and the ranks perhaps too."""
_BUSY_CORES, _BUSY_BYTES_PER_S = 0.1, 64 << 10
"""A rank that uses more than this computes, or moves data: to a disk, or over a slow link to its peers."""
_READY_PART = 0.5
"""A rank that runs or waits for a core for this part of the time computes, too: a busy machine gives it few cores."""
_LEAST_LOOKS, _ASLEEP_PART = 10, 0.5
"""Fewest looks that tell whether a rank polls, and the least part of them at which its main thread slept."""


@dataclass(frozen=True)
class WatchLimits:
    """Time limits."""

    deadline_s: float = 60.0
    """Time without progress until a world in which all ranks wait is a hang, and until a slow rank is reported."""
    idle_s: float = 300.0
    """The same if a rank does nothing outside a collective: it may wait for a disk or a download."""
    compute_s: float = 1800.0
    """Time that a rank may compute while others wait, and that ranks may do nothing while no rank waits."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is seen of one rank at one moment."""

    completed: int
    """Collectives that it has completed."""
    pending: bool
    """True if it waits in a collective, or elsewhere in torch.distributed."""
    cpu_s: float
    queued_s: float = 0.0
    """Time in which its main thread was ready to run and had no core."""
    moved_bytes: int = 0
    """Bytes that it has read and written."""
    children_cpu_s: float | None = None
    """Processor time of its child processes; None if not measured."""
    main_cpu_s: float = 0.0
    """Processor time of its main thread, a part of `cpu_s`; 0 where that is unknown."""
    asleep: bool = False
    """True if its main thread is in a line that calls `sleep`, as in a loop that polls a file or a queue."""
    line: CodeLine | None = None
    inside: CodeLine | None = None
    ended: bool = False
    """True if its program has ended, even if its process still exists."""
    failed: bool = False
    """True if an exception ended its program."""
    stopped: bool = False
    """True if a signal or a debugger has stopped the process."""


class Role(Enum):
    """What a rank does in a world without progress."""

    WAITS = "waits"
    IDLE = "idle"
    COMPUTES = "computes"
    STOPPED = "stopped"
    ENDED = "ended"
    FAILED = "failed"


class Kind(Enum):
    """What is wrong with a world."""

    HANG = "hang"
    LEFT = "left"
    COMPUTING = "computing"


@dataclass(frozen=True)
class Finding:
    """A world without progress."""

    kind: Kind
    still_s: float
    """Time since the last progress."""
    roles: Mapping[int, Role]
    ends: bool
    """True if the world cannot continue, and must be ended."""


@dataclass
class _Track:
    """One rank over time. Times are those at which something last changed."""

    snapshot: Snapshot
    place_at: float
    function_at: float
    pending_at: float
    busy_at: float
    moved_at: float
    stopped_at: float
    window_at: float
    window: Snapshot
    asleep_at: float = 0.0
    """The first look of those since which the main thread has slept at most of them."""
    looks: int = 0
    """How many they are, at most; 0 if it is awake."""
    asleep: float = 0
    """At how many of them it slept."""

    @classmethod
    def begin(cls, snapshot: Snapshot, now: float) -> _Track:
        return cls(snapshot, now, now, now, now, now, now, now, snapshot)

    def update(self, snapshot: Snapshot, now: float) -> None:
        before, self.snapshot = self.snapshot, snapshot
        if (snapshot.line, snapshot.inside) != (before.line, before.inside):
            self.place_at = now
        if _function(snapshot) != _function(before):
            self.function_at = now
        if snapshot.pending != before.pending:
            self.pending_at = now
        if snapshot.stopped != before.stopped:
            self.stopped_at = now
        self._count_sleep(snapshot, now)
        if now - self.window_at >= _WINDOW_S:
            if _computed(self.window, snapshot, now - self.window_at, self.polls):
                self.busy_at = now
            if snapshot.moved_bytes - self.window.moved_bytes >= _BUSY_BYTES_PER_S * (now - self.window_at):
                self.moved_at = now
            self.window_at, self.window = now, snapshot

    def _count_sleep(self, snapshot: Snapshot, now: float) -> None:
        if not self.looks:
            self.asleep_at = now
        if self.looks or snapshot.asleep:
            self.looks, self.asleep = self.looks + 1, self.asleep + snapshot.asleep
        if self.looks >= 2 * _LEAST_LOOKS:  # the last ones count most
            self.looks, self.asleep = self.looks // 2, self.asleep / 2
        if self.asleep < _ASLEEP_PART * self.looks:
            self.looks = self.asleep = 0

    @property
    def polls(self) -> bool:
        """Return whether its main thread sleeps again and again. Between, it may look from several functions."""
        return self.looks >= _LEAST_LOOKS

    @property
    def still_at(self) -> float:
        """Return since when it waits or does nothing."""
        if self.snapshot.stopped:
            return self.stopped_at
        if self.snapshot.pending:
            return max(self.pending_at, self.moved_at, min(self.place_at, self.busy_at))
        place_at = min(self.function_at, self.asleep_at) if self.polls else self.function_at
        return max(self.pending_at, self.moved_at, place_at, self.busy_at)

    def role(self, now: float) -> Role:
        if self.snapshot.failed:
            return Role.FAILED
        if self.snapshot.ended:
            return Role.ENDED
        if self.snapshot.stopped:
            return Role.STOPPED
        if self.snapshot.pending:
            return Role.WAITS
        return Role.COMPUTES if now - max(self.busy_at, self.moved_at) <= 2 * _WINDOW_S else Role.IDLE


def _function(snapshot: Snapshot) -> tuple[str, str] | None:
    return None if snapshot.line is None else (snapshot.line.file, snapshot.line.function)


def _computed(before: Snapshot, after: Snapshot, passed_s: float, polls: bool) -> bool:
    """True if a rank used a core between two moments, or would have if the machine were not busy.

    What a main thread that polls uses to look, or waits for a core to do so, is not work.
    """
    cpu_s = _cpu_s(before, after)
    if polls:
        return cpu_s - (after.main_cpu_s - before.main_cpu_s) >= _BUSY_CORES * passed_s
    return cpu_s >= _BUSY_CORES * passed_s or cpu_s + after.queued_s - before.queued_s >= _READY_PART * passed_s


def _cpu_s(before: Snapshot, after: Snapshot) -> float:
    """Return the processor time of a rank and its children between two moments."""
    cpu_s = after.cpu_s - before.cpu_s
    if before.children_cpu_s is not None and after.children_cpu_s is not None:
        cpu_s += max(0.0, after.children_cpu_s - before.children_cpu_s)
    return cpu_s


@dataclass
class ProgramWatch:
    """The state of one attempt of a world."""

    limits: WatchLimits
    _tracks: dict[int, _Track] = field(default_factory=dict)
    _progress_at: float = 0.0
    _reported: bool = False
    _looked_at: float = 0.0

    def look(self, snapshots: Mapping[int, Snapshot], now: float) -> Finding | None:
        """Take what is seen of all ranks, and decide. A slow rank is reported once until the next progress."""
        self._update(snapshots, now)
        running = [track for track in self._tracks.values() if not track.snapshot.ended]
        if not running or not any(track.snapshot.pending or track.snapshot.completed for track in running):
            return None  # a program that does not use torch.distributed, or has ended
        return self._find_hang(running, now) or self._find_slow_rank(running, now)

    def still_s(self, now: float) -> float:
        """Return the time since the last progress."""
        return now - self._progress_at if self._tracks else 0.0

    def wait(self, now: float, least_s: float) -> Finding | None:
        """Return what the ranks do if one has waited, or all have done nothing, for a time since the last progress."""
        still = [track for track in self._tracks.values() if now - track.still_at >= least_s]
        waiting = [track for track in still if track.snapshot.pending]
        roles = self._roles(now)
        is_idle = (
            {*roles.values()} == {Role.IDLE} and len(still) == len(roles) and any(t.snapshot.completed for t in still)
        )
        if not (waiting or is_idle) or self.still_s(now) < least_s:
            return None
        kind = Kind.COMPUTING if Role.COMPUTES in roles.values() else Kind.HANG
        return Finding(kind, self.still_s(now), roles, ends=False)

    def _update(self, snapshots: Mapping[int, Snapshot], now: float) -> None:
        changed = snapshots.keys() != self._tracks.keys()
        for rank, snapshot in snapshots.items():
            track = self._tracks.get(rank)
            if track is None:
                self._tracks[rank] = _Track.begin(snapshot, now)
            else:
                changed |= snapshot.completed != track.snapshot.completed or snapshot.ended != track.snapshot.ended
                track.update(snapshot, now)
        if changed or now - self._looked_at > _GAP_S:
            self._progress_at, self._reported = now, False
        self._looked_at = now

    def _find_hang(self, running: list[_Track], now: float) -> Finding | None:
        still_s = now - max(self._progress_at, *(track.still_at for track in running))
        waiting = [track.snapshot.pending or track.snapshot.stopped for track in running]
        limits = self.limits
        if all(waiting):
            allowed_s = limits.deadline_s
        elif any(waiting):
            allowed_s = limits.idle_s
        else:
            allowed_s = limits.compute_s
        if still_s < allowed_s:
            return None
        left = any(track.snapshot.ended for track in self._tracks.values())
        return Finding(Kind.LEFT if left and all(waiting) else Kind.HANG, still_s, self._roles(now), ends=True)

    def _find_slow_rank(self, running: list[_Track], now: float) -> Finding | None:
        still_s = self.still_s(now)
        roles = self._roles(now)
        waiting = [t for t in running if t.snapshot.pending and now - t.still_at >= self.limits.deadline_s]
        if still_s < self.limits.deadline_s or not waiting or Role.COMPUTES not in roles.values():
            return None
        ends = still_s >= self.limits.compute_s
        if self._reported and not ends:
            return None
        self._reported = True
        return Finding(Kind.COMPUTING, still_s, roles, ends)

    def _roles(self, now: float) -> dict[int, Role]:
        return {rank: track.role(now) for rank, track in sorted(self._tracks.items())}


# ---- snapshots of ranks ----------------------------------------------------------------------------------------------

_INSIDE_TORCH = "torch/distributed/"
_SLEEPS = re.compile(r"\bsleep\(")


def take_snapshot(status: Status, with_children: bool) -> Snapshot:
    """Return what is seen of one rank now. with_children: also measure its child processes."""
    snapshot = Snapshot(
        completed=sum(group.completed for group in status.groups),
        pending=status.in_message
        or any(group.pending for group in status.groups)
        or (status.inside is not None and _INSIDE_TORCH in status.inside.file),
        cpu_s=status.cpu_s,
        line=status.line,
        inside=status.inside,
        asleep=_is_asleep(status.inside),
        ended=status.state != "running",
        failed=status.state == "failed",
    )
    return snapshot if snapshot.ended else _with_process(snapshot, status.pid, with_children)


def _is_asleep(inside: CodeLine | None) -> bool:
    """True if the text of the innermost line calls `sleep`. False if its file is not on this machine."""
    return inside is not None and _SLEEPS.search(linecache.getline(inside.file, inside.line)) is not None


def take_snapshots(statuses: Mapping[int, Status], with_children: bool) -> dict[int, Snapshot]:
    """Return what is seen of each rank now."""
    return {rank: take_snapshot(status, with_children) for rank, status in statuses.items()}


def _with_process(snapshot: Snapshot, pid: int, with_children: bool) -> Snapshot:
    """Add what the operating system knows of a process; a status may be old, and the process may have ended."""
    try:
        process = psutil.Process(pid)
        state, times = process.status(), process.cpu_times()
        children = process.children(recursive=True) if with_children else []
    except psutil.Error:
        return replace(snapshot, ended=True)
    main_cpu_s, queued_s = _main_thread_s(pid)
    return replace(
        snapshot,
        cpu_s=times.user + times.system,
        main_cpu_s=main_cpu_s,
        queued_s=queued_s,
        moved_bytes=_moved_bytes(pid),
        children_cpu_s=sum(map(_process_cpu_s, children)) if with_children else None,
        ended=state == psutil.STATUS_ZOMBIE,
        stopped=state in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP),
    )


def _process_cpu_s(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


def _main_thread_s(pid: int) -> tuple[float, float]:
    """Return how long a process's main thread has run, and been ready without a core; zeros where that is unknown."""
    try:
        ran_ns, queued_ns, *_ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9
    except (OSError, ValueError):
        return 0.0, 0.0


def _moved_bytes(pid: int) -> int:
    """Return a count of the bytes that a process has read and written; 0 where that is unknown.

    It includes gloo's sockets, and pages of mapped files that came from a disk.
    """
    try:
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return sum(int(fields[name]) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))
    except (OSError, ValueError, KeyError):
        return 0

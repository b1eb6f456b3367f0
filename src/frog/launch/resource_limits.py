"""Watch the resources that processes use: CPU time, memory, processes and files.

For code that may do anything: a learner's solution, another library's collectives.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from frog.core.processes import descendants, of_threads

SHARED_MEMORY = Path("/dev/shm")
MOST_BYTES = 1 << 30
"""Memory limit, in addition to that of a process with torch loaded."""
MOST_PROCESSES = 32
MOST_THREADS = 512
"""Limit per process. Unlimited threads would use up all of the machine's process numbers."""
MOST_FILE_BYTES = 64 << 20
"""Size limit of one file."""
CHECK_INTERVAL_S = 0.05
"""Interval between two checks of the processes."""
_MOST_INTERVAL_S = 0.25
"""What an interval counts for at most: in a longer one the monitor itself waited for a core and saw nothing."""
MOST_SCRATCH_BYTES = 256 << 20
_LEAST_FILE_BYTES = 64 << 10
MOST_OUTPUT_BYTES = 4 << 20
IDLE_S = 5.0
"""Time without a frame and without computing after which sleeping processes count as stuck forever."""
_ACTIVITY_CPU_S = 0.25
"""CPU time that counts as activity. Waiting threads use a little too: gloo's wake up a hundred times a second."""
_STARVED_CHECKS = 10
"""A process found runnable this many times more often than asleep counts as waiting for a core."""
MOST_REST_S = 90.0
"""Limit on the total time in which no process computes or waits for a core; independent of the machine's speed."""
_LOADING_S = 1.7
"""CPU time for loading the reserve process on the machine on which the exercises' limits were set."""
_MOST_SLOWNESS = 8.0
_IS_LINUX = sys.platform.startswith("linux")
_UTIME, _STIME, _NUM_THREADS, _RSS = 11, 12, 17, 21
"""Places in /proc/PID/stat after the command's name: proc(5) counts from 3 there."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def slowness() -> float:
    """Return this process's CPU time for loading, relative to the reference machine's; at least 1.

    Limits on CPU time limit the amount of work: a slow machine, or one with shared cores, needs more seconds for it.
    """
    return min(max(time.process_time() / _LOADING_S, 1.0), _MOST_SLOWNESS)


@dataclass
class Breach:
    """An exceeded limit."""

    id: str
    observed: str
    rank: int
    asleep: bool = False
    """True if all ranks slept."""


@dataclass(frozen=True)
class _State:
    """The state of a process at one check."""

    used_s: float
    """Its CPU time."""
    memory: int
    """Its resident memory in bytes."""
    num_threads: int
    num_descendants: int
    could_run: bool
    """True if one of its threads computes, or waits for a core."""


@dataclass
class ResourceMonitor:
    """Checks processes against the limits. `seconds`: each one's limit on CPU time after it was ready."""

    pids: Sequence[int]
    seconds: float
    scratch: Path
    began: dict[int, float] = field(default_factory=dict)
    """Each rank's CPU seconds when it was ready."""
    last_activity_s: float = field(default_factory=time.monotonic)
    """Time of the last observed activity, later by the time in which nothing was observed."""
    _used: dict[int, float] = field(default_factory=dict)
    _memory: dict[int, int] = field(default_factory=dict)
    _could_run: dict[int, int] = field(default_factory=dict)
    """Each process's surplus of runnable over sleeping checks."""
    _rest_s: float = 0.0
    """Total time in which no process computed."""
    _checked_s: float = field(default_factory=time.monotonic)

    def check(self, ended: set[int], through: Set[int] = frozenset()) -> Breach | None:
        """Return the first limit that a running process has exceeded. `through`: ranks that have returned or failed."""
        running = False
        for rank, pid in enumerate(self.pids):
            state = None if rank in ended else _state_of(pid)
            if state is None:
                continue
            breach = self._process(rank, state)
            if breach is not None:
                return breach
            running = self._runs(pid, state.could_run) or running
        now = time.monotonic()
        seen_s = min(now - self._checked_s, _MOST_INTERVAL_S)
        self.last_activity_s += now - self._checked_s - seen_s
        self._rest_s += 0.0 if running else seen_s
        self._checked_s = now
        if running or len(self.began) < len(self.pids):  # while a world forms, its ranks poll a file for each other
            self.last_activity_s = now
        return self._world(min(set(range(len(self.pids))) - ended - through, default=0))

    def _process(self, rank: int, state: _State) -> Breach | None:
        if state.used_s > self._used.get(rank, 0.0) + _ACTIVITY_CPU_S:
            self._used[rank], self.last_activity_s = state.used_s, time.monotonic()
        if rank not in self.began:
            self._memory[rank] = state.memory
        elif state.memory > self._memory.get(rank, 0) + MOST_BYTES:
            return Breach("too-much-memory", f"rank {rank} used more than {MOST_BYTES >> 30} GiB of memory.", rank)
        elif state.used_s - self.began[rank] > self.seconds:
            text = f"rank {rank} had computed for {self.seconds:g} s and had not finished."
            return Breach("never-ends", text, rank)
        if state.num_descendants > MOST_PROCESSES:
            return Breach("too-many-processes", f"rank {rank} had {state.num_descendants} processes.", rank)
        if state.num_threads > MOST_THREADS:
            return Breach("too-many-processes", f"rank {rank} had {state.num_threads} threads.", rank)
        return None

    def _runs(self, pid: int, could_run: bool) -> bool:
        """Return True if one of its threads computes, or would with a free core: a starved thread does not sleep.

        A single check is not enough: a waiting thread wakes up now and then, and a check may catch it awake. Threads
        that run in turn are each asleep most of the time, so one runnable thread counts for the process.
        """
        if not _IS_LINUX:
            return could_run
        surplus = max(0, self._could_run.get(pid, 0) + (1 if could_run else -1))
        self._could_run[pid] = min(surplus, _STARVED_CHECKS)
        return surplus >= _STARVED_CHECKS

    def _world(self, rank: int) -> Breach | None:
        if time.monotonic() - self.last_activity_s > IDLE_S:
            text = (
                f"For {IDLE_S:g} s no rank computed or communicated: "
                "the code sleeps, or waits for something that never happens."
            )
            return Breach("never-ends", text, rank, asleep=True)
        if self._rest_s > MOST_REST_S:
            text = f"The ranks had slept or waited for {MOST_REST_S:g} s in total and had not finished."
            return Breach("never-ends", text, rank, asleep=True)
        size = folder_bytes(self.scratch)
        if size > MOST_SCRATCH_BYTES:
            return Breach("too-many-files", f"It wrote {size >> 20} MiB of files.", rank)
        return None


def _state_of(pid: int) -> _State | None:
    """Return a process's state; None if it has ended.

    Linux has all of it in a few files. psutil reads one of them for each value, and takes three times as long.
    """
    if not _IS_LINUX:
        return _state_by_psutil(pid)
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            values = _after_name(file.read())
    except OSError:
        return None
    return _State(
        used_s=(int(values[_UTIME]) + int(values[_STIME])) / _TICKS_PER_S,
        memory=int(values[_RSS]) * resource.getpagesize(),
        num_threads=int(values[_NUM_THREADS]),
        num_descendants=len(descendants(pid)),
        could_run=_could_run(pid),
    )


def _could_run(pid: int) -> bool:
    return any(_after_name(stat)[0] in (b"R", b"D") for stat in of_threads(pid, "stat"))


def _after_name(stat: bytes) -> list[bytes]:
    """Split the content of a `stat` file after the command's name, which may contain spaces and parentheses."""
    return stat.rpartition(b")")[2].split()


def _state_by_psutil(pid: int) -> _State | None:
    try:
        process = psutil.Process(pid)
        times, memory = process.cpu_times(), process.memory_info().rss
        could_run = process.status() not in (psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED)
        threads = process.num_threads()
        return _State(times.user + times.system, memory, threads, len(descendants(pid)), could_run)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder that may be changing; even an empty file takes space."""
    total = 0
    for root, _, names in os.walk(folder):  # skips a folder that disappears in the meantime
        for name in names:
            with contextlib.suppress(OSError):
                total += max(os.lstat(os.path.join(root, name)).st_size, _LEAST_FILE_BYTES)
    return total


def end_descendants(keep: Sequence[int] = ()) -> None:
    """Kill all descendants of this process except `keep`, until none remains."""
    for _ in range(100):
        family = [process for process in _processes(descendants(os.getpid())) if process.pid not in keep]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not family:
            return
        psutil.wait_procs(family, timeout=1)


def remove_shared_memory(pids: Sequence[int]) -> None:
    """Remove torch's files in /dev/shm of processes that have ended; their names contain the process number.

    Processes with a private /dev/shm leave no files.
    """
    for pid in pids:
        for path in SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _processes(pids: Sequence[int]) -> Iterator[psutil.Process]:
    """Yield the processes that have not ended."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process

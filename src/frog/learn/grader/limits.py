"""What the processes of a learner use, looked at from outside: computing, memory, processes, files."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from frog.core.processes import descendants, of_threads

SHARED_MEMORY = Path("/dev/shm")
MOST_BYTES = 1 << 30
"""Of memory, beyond what a process has that has torch loaded."""
MOST_PROCESSES = 32
MOST_THREADS = 512
"""Of one process. Without end they would take every number that the machine has for processes."""
MOST_FILE_BYTES = 64 << 20
"""Of one file."""
LOOK_S = 0.05
"""Between two looks at processes."""
MOST_SCRATCH_BYTES = 256 << 20
_LEAST_FILE_BYTES = 64 << 10
MOST_OUTPUT_BYTES = 4 << 20
IDLE_S = 5.0
"""How long all may sleep, without a frame and without computing, until that counts as for ever."""
_STIR_S = 0.25
"""Of computing. Threads that wait use a little too: gloo's look up a hundred times a second."""
_STARVED_LOOKS = 10
"""In how many more looks a thread could run than slept, until it counts as one that waits for a core."""
MOST_REST_S = 90.0
"""In all, of time in which nobody computes, nor waits for a core: that takes as long as the machine is slow."""
_LOADING_S = 1.7
"""Of computing: loading all in the process in reserve, on the machine that the exercises' limits were set on."""
_MOST_SLOWNESS = 8.0


def slowness() -> float:
    """How many times longer than that this process has computed, which has just loaded all; at least 1.

    A limit of computing is one of work: a slow machine, or one whose cores are shared, needs more seconds for it.
    """
    return min(max(time.process_time() / _LOADING_S, 1.0), _MOST_SLOWNESS)


@dataclass
class Breach:
    """A limit that was met."""

    id: str
    observed: str
    rank: int
    asleep: bool = False
    """All ranks slept."""


@dataclass
class Watch:
    """Looks at processes now and then. `seconds`: of computing that each may need from when it was ready."""

    pids: Sequence[int]
    seconds: float
    scratch: Path
    began: dict[int, float] = field(default_factory=dict)
    """Seconds of computing of each when it was ready."""
    stirred: float = field(default_factory=time.monotonic)
    """When something was last seen to happen."""
    _used: dict[int, float] = field(default_factory=dict)
    _memory: dict[int, int] = field(default_factory=dict)
    _could_run: dict[int, int] = field(default_factory=dict)
    """Of each thread: in how many more looks it could run than slept."""
    _rest_s: float = 0.0
    """How long nobody computed, in all."""
    _looked: float = field(default_factory=time.monotonic)

    def look(self, ended: set[int], through: Set[int] = frozenset()) -> Breach | None:
        """The first limit that one of those that still run has met. `through`: who has returned or failed."""
        running = False
        for rank, pid in enumerate(self.pids):
            if rank in ended:
                continue
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process = psutil.Process(pid)
                if (breach := self._process(rank, process)) is not None:
                    return breach
                running = self._runs(process) or running
        now = time.monotonic()
        self._rest_s += 0.0 if running else now - self._looked
        self._looked = now
        if running or len(self.began) < len(self.pids):  # while a world is made, ranks ask a file for each other
            self.stirred = now
        return self._world(min(set(range(len(self.pids))) - ended - through, default=0))

    def _process(self, rank: int, process: psutil.Process) -> Breach | None:
        times, memory = process.cpu_times(), process.memory_info().rss
        used = times.user + times.system
        if used > self._used.get(rank, 0.0) + _STIR_S:
            self._used[rank], self.stirred = used, time.monotonic()
        if rank not in self.began:
            self._memory[rank] = memory
        elif memory > self._memory.get(rank, 0) + MOST_BYTES:
            return Breach("too-much-memory", f"rank {rank} took more than {MOST_BYTES >> 30} GiB of memory.", rank)
        elif used - self.began[rank] > self.seconds:
            text = f"rank {rank} had computed for {self.seconds:g} s and had not come to an end."
            return Breach("never-ends", text, rank)
        if (count := len(descendants(process.pid))) > MOST_PROCESSES:
            return Breach("too-many-processes", f"rank {rank} had {count} processes.", rank)
        if (count := process.num_threads()) > MOST_THREADS:
            return Breach("too-many-processes", f"rank {rank} had {count} threads.", rank)
        return None

    def _runs(self, process: psutil.Process) -> bool:
        """Whether one of its threads computes, or would if a core were free: what starves does not sleep.

        One look says little: a thread that waits looks up now and then, and any look may find it at that.
        """
        if not sys.platform.startswith("linux"):
            return process.status() not in (psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED)
        runs = False
        for stat in of_threads(process.pid, "stat"):
            thread, state = int(stat.split(" ", 1)[0]), stat.rpartition(")")[2].split()[0]
            looks = max(0, self._could_run.get(thread, 0) + (1 if state in "RD" else -1))
            self._could_run[thread] = min(looks, _STARVED_LOOKS)
            runs = runs or looks >= _STARVED_LOOKS
        return runs

    def _world(self, rank: int) -> Breach | None:
        if time.monotonic() - self.stirred > IDLE_S:
            text = f"For {IDLE_S:g} s no rank computed or communicated: the code sleeps, or waits for what never comes."
            return Breach("never-ends", text, rank, asleep=True)
        if self._rest_s > MOST_REST_S:
            text = f"The ranks had slept or waited for {MOST_REST_S:g} s in all, and had not come to an end."
            return Breach("never-ends", text, rank, asleep=True)
        if (size := folder_bytes(self.scratch)) > MOST_SCRATCH_BYTES:
            return Breach("too-many-files", f"It wrote {size >> 20} MiB of files.", rank)
        return None


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder that may be changing; an empty one takes room too."""
    total = 0
    for root, _, names in os.walk(folder):  # passes over a folder that goes meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                total += max(os.lstat(os.path.join(root, name)).st_size, _LEAST_FILE_BYTES)
    return total


def end_descendants(keep: Sequence[int] = ()) -> None:
    """Kill all that this process has started, and what those have, but for some, until none is left."""
    for _ in range(100):
        family = [process for process in _processes(descendants(os.getpid())) if process.pid not in keep]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not family:
            return
        psutil.wait_procs(family, timeout=1)


def remove_shared_memory(pids: Sequence[int]) -> None:
    """Remove what torch has left in /dev/shm for processes that have ended: it names each file for its process.

    Where processes may have a /dev/shm of their own (frog.learn.grader.guard.hide), nothing is left.
    """
    for pid in pids:
        for path in SHARED_MEMORY.glob(f"torch_{pid}_*"):
            with contextlib.suppress(OSError):
                path.unlink()


def _processes(pids: Sequence[int]) -> Iterator[psutil.Process]:
    """Those that have not ended."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                yield process

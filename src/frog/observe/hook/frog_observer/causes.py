"""Why a rank may be slow, seen from outside at each beat: what its main thread is in, and who else takes its time.

Reads frames, the time of garbage collections, and the processor time of the program's other threads.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from types import FrameType
from typing import Any

_LATE_S = 0.25
"""A beat that comes later than this waited for Python's lock (GIL), if its process did not wait for a core."""
_BUSY_CORE = 0.4
"""A thread that uses more than this part of a core takes time from the main thread."""

_COMPILE = (
    os.path.join("torch", "_dynamo", "convert_frame.py"),
    os.path.join("torch", "_inductor") + os.sep,
    os.path.join("torch", "_functorch", "aot_autograd.py"),
)
_LOADER = os.path.join("torch", "utils", "data", "dataloader.py")
_SAVES = (
    os.path.join("torch", "serialization.py"),
    os.path.join("torch", "distributed", "checkpoint") + os.sep,
    os.path.join("safetensors", "torch.py"),
)
_MOST_MEMORY = 48
"""Moments at which the memory is kept, evenly over the program's life."""


class Causes:
    """Counts the beats at which something else than the program's own lines took the time."""

    def __init__(self, main: int) -> None:
        self._main = main
        self.counts: dict[str, int] = {}
        self.thread = ""
        """The busiest other thread, when last seen busy."""
        self._collecting_ns, self._collected_s, self._last_collected_s = 0, 0.0, 0.0
        self._cpu_s: dict[int, float] = {}
        gc.callbacks.append(self._on_collection)

    def look(self, stack: list[FrameType], late_s: float, passed_s: float, queued_s: float) -> None:
        """Count what takes the time now. stack: the main thread's, innermost first. late_s: of this beat."""
        collected_s, self._last_collected_s = self._collected_s - self._last_collected_s, self._collected_s
        if (cause := _of_frames(stack)) is not None:
            self._count(cause)
        if collected_s > 0.3 * passed_s:
            self._count("gc")
        if self._other_threads(passed_s):
            self._count("thread")
        elif late_s > _LATE_S and queued_s < 0.5 * passed_s:
            self._count("gil")

    def clear(self) -> None:
        self.counts.clear()

    def _count(self, cause: str) -> None:
        self.counts[cause] = self.counts.get(cause, 0) + 1

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._collecting_ns = now_ns
        elif self._collecting_ns:
            self._collected_s += (now_ns - self._collecting_ns) / 1e9

    def _other_threads(self, passed_s: float) -> bool:
        """True if another Python thread of the program used much of a core since the last beat."""
        busiest_s = 0.0
        for ident, thread in list(threading._active.items()):  # type: ignore[attr-defined]
            number = getattr(thread, "native_id", None)
            if ident == self._main or not number:
                continue
            cpu_s = _thread_cpu_s(number)
            used_s = cpu_s - self._cpu_s.get(number, cpu_s)
            self._cpu_s[number] = cpu_s
            if used_s > max(busiest_s, _BUSY_CORE * passed_s):
                busiest_s, self.thread = used_s, str(thread.name)[:80]
        return busiest_s > 0


def _of_frames(stack: list[FrameType]) -> str | None:
    """Return what the main thread does, if its frames tell."""
    for frame in stack[:200]:
        file = frame.f_code.co_filename
        if any(part in file for part in _COMPILE):
            return "compile"
        if file.endswith(_LOADER):
            return "loader"
        if any(part in file for part in _SAVES) and "load" not in frame.f_code.co_name:
            return "checkpoint"
    return None


def _thread_cpu_s(number: int) -> float:
    """Return the processor time of a thread of this process; 0 where the system does not say."""
    try:
        with open(f"/proc/self/task/{number}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Memory:
    """The memory of the process over its life, at a number of moments that does not grow."""

    def __init__(self) -> None:
        self.moments: list[tuple[int, int]] = []
        """Collectives so far, and MiB."""
        self._beats, self._each = 0, 1

    def look(self, collectives: int, resident_bytes: int) -> None:
        """Keep a moment, or not: if there are too many, every other one remains."""
        self._beats += 1
        if self._beats % self._each:
            return
        self.moments.append((collectives, resident_bytes >> 20))
        if len(self.moments) > _MOST_MEMORY:
            del self.moments[::2]
            self._each *= 2

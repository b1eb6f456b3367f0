"""The observer's thread: twice a second, where the rank is, in status.json.

The thread is invisible to the program: not in `threading.enumerate()`, handles no signal, does not delay the exit, and
forked children do not have it.
"""

from __future__ import annotations

import _thread
import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any

from . import files, frames, recorder
from .place import Place

BEAT_S = 0.5
_MOST_LINES = 20
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
"""Signals that a thread raises by its own fault; blocking them would hide a crash."""


class Beats:
    """One rank's state, written until the process ends."""

    def __init__(self, place: Place) -> None:
        self.place, self.pid = place, os.getpid()
        self.main = threading.main_thread().ident or 0
        self.state = "running"
        self.answered = 0
        self._fixed = {
            "format": 1,
            "rank": place.rank,
            "local_rank": place.local_rank,
            "node_rank": place.node_rank,
            "world_size": place.world_size,
            "attempt": place.attempt,
            "host": os.environ.get("FROG_NODE_NAME") or socket.gethostname(),
            "pid": self.pid,
            "started_unix_ns": time.time_ns(),
        }
        self._samples = {"taken": 0, "in_collective": 0, "waiting": 0}
        self._lines: Counter[str] = Counter()
        self._last_cpu_s, self._last_s = time.process_time(), time.monotonic()

    def start(self) -> None:
        """Write the first status, and start the thread."""
        self.beat()
        atexit.register(self.end)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)  # the thread inherits it
        try:
            _thread.start_new_thread(self._run, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def end(self) -> None:
        """Write the last status. Python calls this at the end of the program, after the program's own handlers."""
        if os.getpid() == self.pid:
            self.state = "ended" if self.state == "running" else self.state
            self.beat()

    def _run(self) -> None:
        while True:
            time.sleep(BEAT_S)
            try:
                self.beat()
            except Exception:  # torch is half-loaded, or the interpreter is shutting down
                continue

    def beat(self) -> None:
        """Write status.json."""
        stack = frames.stack_of(self.main)
        groups = recorder.counts()
        line = frames.user_line(stack)
        cpu_s = time.process_time()
        self._take_sample(stack, groups, line, cpu_s)
        torch, backend = recorder.versions()
        status = {
            **self._fixed,
            "unix_ns": time.time_ns(),
            "mono_ns": time.monotonic_ns(),
            "state": self.state,
            "cpu_s": cpu_s,
            "rss_bytes": _resident_bytes(),
            "gpu_bytes": None,
            "groups": groups,
            "line": line,
            "in": frames.place_of(stack[0]) if stack else None,
            "samples": {**self._samples, "lines": [list(item) for item in self._lines.most_common(_MOST_LINES)]},
            "answered": self.answered,
            "torch": torch,
            "backend": backend,
        }
        files.write_json(self.place.folder, "status.json", status)

    def _take_sample(
        self, stack: list[Any], groups: list[dict[str, Any]], line: dict[str, Any] | None, cpu_s: float
    ) -> None:
        """Count where the main thread is at this beat."""
        now_s = time.monotonic()
        waits = cpu_s - self._last_cpu_s < 0.1 * (now_s - self._last_s)
        self._last_cpu_s, self._last_s = cpu_s, now_s
        pending = any(group["enqueued"] > group["completed"] for group in groups)
        self._samples["taken"] += 1
        self._samples["waiting"] += waits
        self._samples["in_collective"] += pending
        if line is not None:
            self._lines[f"{os.path.basename(line['file'])}:{line['line']}"] += 1
            if len(self._lines) > 50 * _MOST_LINES:
                self._lines = Counter(dict(self._lines.most_common(10 * _MOST_LINES)))


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024

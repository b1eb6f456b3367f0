"""Asks torch for its collectives in a thread of its own, which may block for ever without harm.

The thread exists from the start: Python refuses to start one while it exits.
"""

from __future__ import annotations

import _thread
from _queue import SimpleQueue
from collections.abc import Callable
from typing import Any


class Dumper:
    """Runs jobs one after the other."""

    def __init__(self, start_thread: Callable[[Callable[[], None]], None]) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], Any]] = SimpleQueue()
        self._busy = False
        start_thread(self._run)

    def run(self, job: Callable[[], None], deadline_s: float) -> bool:
        """Run a job and wait for its end; return False if it is not over in time, or an earlier one still blocks."""
        if self._busy:
            return False
        self._busy = True
        over = _thread.allocate_lock()
        over.acquire()
        self._jobs.put((job, over))
        return over.acquire(timeout=deadline_s)

    def _run(self) -> None:
        while True:
            job, over = self._jobs.get()
            try:
                job()
            except Exception:  # another version of torch: the file stays as it is
                pass
            finally:
                self._busy = False
                over.release()

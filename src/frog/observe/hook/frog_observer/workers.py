"""Where the workers of a rank's DataLoader are: each answers requests with its stack, in worker_N.json.

A worker is a forked child, in which nothing of the observer runs but this one thread. Workers that are spawned are not
observed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from . import frames, rank_files
from .place import Place

_POLL_S = 0.5
_ID = 10
"""Position of the worker's number among the arguments of torch's `_worker_loop`."""


class Workers:
    """Starts the thread in each worker, once the program has imported torch's DataLoader."""

    def __init__(self, place: Place, start_thread: Callable[[Callable[[], None]], None]) -> None:
        self._place, self._pid, self._start_thread = place, os.getpid(), start_thread
        self._is_watching = False

    def watch(self) -> None:
        """Wrap the function that workers run. Pickle finds torch's own, so that spawned workers are as without it."""
        module: Any = sys.modules.get("torch.utils.data._utils.worker")
        if self._is_watching or not hasattr(module, "_worker_loop"):
            return
        self._is_watching = True
        module._worker_loop = self._watched(module._worker_loop)

    def _watched(self, loop: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loop)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() != self._pid:
                with contextlib.suppress(Exception):  # the worker works without it
                    self._start(args, kwargs)
            return loop(*args, **kwargs)

        return watched

    def _start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        number = kwargs.get("worker_id", args[_ID] if len(args) > _ID else 0)
        main = threading.get_ident()
        self._start_thread(functools.partial(self._run, int(number), main))

    def _run(self, number: int, main: int) -> None:
        answered, _ = rank_files.read_request(self._place.requests)
        while True:
            time.sleep(_POLL_S)
            requested, _ = rank_files.read_request(self._place.requests)
            if requested == answered:
                continue
            answered = requested
            stack = [frames.place_of(frame) for frame in frames.stack_of(sys._current_frames().get(main))]
            head = {"format": 1, "rank": self._place.rank, "pid": os.getpid(), "unix_ns": time.time_ns()}
            stack_file = {**head, "worker": number, "frames": stack[::-1][-64:]}
            rank_files.write_json(self._place.folder, f"worker_{number}.json", stack_file)

"""Record a few optimizer steps of any program with torch.profiler, as `frog profile -- my.py` asks.

FROG_PROFILE has the number of steps to leave out and to record. A step ends when the program's first optimizer has
taken one: torch calls a hook then, in the program's own thread. Each rank leaves its trace and torch's table in the
run's folder `profile`, and ends the program there, unless it is to continue. Standard library and the program's torch.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from . import rank_files
from .beat import _start_thread
from .place import Place, find_place

_POLL_S = 0.01
_ROWS = 25


def install() -> None:
    """Wait for torch's optimizers in this process if it is a rank to profile."""
    asked, place = os.environ.get("FROG_PROFILE"), find_place(os.environ, os.getpid())
    if asked is None or place is None:
        return
    after, steps, continues = (int(number) for number in asked.split(","))
    profiler = _Profiler(place, os.environ["FROG_RUN_DIR"], after, steps, bool(continues))
    _start_thread(profiler.wait_for_torch)


class _Profiler:
    """The steps of one rank, from its first to the end of the recorded ones."""

    def __init__(self, place: Place, run: str, after: int, steps: int, continues: bool) -> None:
        self._place, self._folder = place, os.path.join(run, "profile")
        self._first, self._last, self._continues = after + 1, after + steps, continues
        self._pid, self._optimizer, self._step = os.getpid(), 0, 0
        self._profile: Any = None
        self._mark: Any = None
        self._began_ns = 0
        self._took_ms: list[float] = []
        self._handle: Any = None

    def wait_for_torch(self) -> None:
        """Ask torch to report steps as soon as it is imported."""
        while True:
            module: Any = sys.modules.get("torch.optim.optimizer")
            if hasattr(module, "register_optimizer_step_post_hook") and hasattr(module, "Optimizer"):
                self._handle = module.register_optimizer_step_post_hook(self._on_step)
                return
            time.sleep(_POLL_S)

    def _on_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take the end of an optimizer's step. Only the first optimizer counts: a program may have several."""
        self._optimizer = self._optimizer or id(optimizer)
        if id(optimizer) != self._optimizer or os.getpid() != self._pid:
            return
        is_done = False
        try:
            is_done = self._end_step()
        except Exception as error:  # another version of torch, a profiler of the program's own, a full disk
            self._stop(f"{type(error).__name__}: {error}")
        if is_done and not self._continues:
            raise SystemExit(0)

    def _end_step(self) -> bool:
        """Count a step; return True after the last recorded one."""
        self._step += 1
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._took_ms.append((time.monotonic_ns() - self._began_ns) / 1e6)
            self._mark = None
        if self._step == self._first - 1:
            self._begin()
        if self._step == self._last and self._profile is not None:
            self._write()
            return True
        if self._profile is not None:
            self._mark = sys.modules["torch"].profiler.record_function(f"frog::step {self._step + 1}")
            self._mark.__enter__()
            self._began_ns = time.monotonic_ns()
        return False

    def _begin(self) -> None:
        torch: Any = sys.modules["torch"]
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profile.start()

    def _write(self) -> None:
        """Write the trace, the table and what they are about; each appears whole or not at all."""
        profile, self._profile = self._profile, None
        profile.stop()
        self._remove_hook()
        os.makedirs(self._folder, exist_ok=True)
        name = f"rank_{self._place.rank}"
        trace = os.path.join(self._folder, f".{name}.trace.json")  # torch compresses nothing under this name
        profile.export_chrome_trace(trace)
        os.replace(trace, os.path.join(self._folder, f"{name}.trace.json"))
        sort = "self_device_time_total" if len(profile.activities) > 1 else "self_cpu_time_total"
        table = profile.key_averages().table(sort_by=sort, row_limit=_ROWS, max_name_column_width=50)
        rank_files.write_bytes(self._folder, f"{name}.txt", table.encode())
        about = {
            "format": 1,
            "rank": self._place.rank,
            "pid": self._pid,
            "steps": [self._first, self._last],
            "took_ms": self._took_ms,
        }
        rank_files.write_json(self._folder, f"{name}.json", about)

    def _stop(self, why: str) -> None:
        """Leave the program as it is without the profiler."""
        print(f"frog profile stopped on rank {self._place.rank}; the program continues: {why}", file=sys.stderr)
        self._profile = self._mark = None
        self._remove_hook()

    def _remove_hook(self) -> None:
        with contextlib.suppress(Exception):
            self._handle.remove()

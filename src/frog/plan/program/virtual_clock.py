"""The cluster's time in a program that is planned: what it reads from `time`, and from CUDA events.

The rows of the program are played as they come. Python's clock advances with what it launches and with what it waits
for, so a program that synchronizes before it reads the time prints what it would print on the cluster. A message starts
when both of its ranks are ready: their processes tell each other. What Python does outside of torch takes no time here.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
import timeit
from collections.abc import Callable
from typing import Any

from frog.plan.estimate.hardware import Cluster
from frog.plan.program.program_time import Meetings, StepClock
from frog.plan.program.recording_rank import Recorder, is_frog_or_torch

_TICK_S = 1e-6
"""Two readings are never equal, because programs divide by their difference."""
_REAL_SLEEP_S = 1e-3
"""How long a sleep takes, so that a program that waits for another one does not burn a core."""
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
_COPY_OF_MULTIPROCESSING = os.sep + os.path.join("site-packages", "multiprocess", "")
"""The folder of an installed library with the standard library's waits, which Hugging Face's datasets uses."""
_Function = type(time.sleep)


class VirtualClock:
    """The planned time since the program started."""

    def __init__(
        self, recorder: Recorder, cluster: Cluster, num_gpus: int, rank: int = 0, meetings: Meetings | None = None
    ) -> None:
        self.recorder, self.num_gpus = recorder, num_gpus
        self.clock = StepClock(cluster, rank=rank, meetings=meetings)
        self.num_asked = 0
        """How often the program asked for a time."""
        self._num_played = 0
        self._is_playing = False
        self._theirs: dict[str, bool] = {}

    def catch_up(self) -> None:
        """Play the rows that came since the last call."""
        if self._is_playing:
            return
        self._is_playing = True
        rows = self.recorder.rows
        try:
            self.clock.play_rows(rows[self._num_played :])
        finally:  # the peer of a message may have ended
            self._num_played = len(rows)
            self._is_playing = False

    def end_step(self) -> None:
        """Add what a step takes as a whole; the recorder begins a new list of rows."""
        self.catch_up()
        self.clock.finish(self.num_gpus)
        self._num_played = 0

    def continue_step(self, num_rows: int) -> None:
        """Note that the recorder has put the rows of the step that ended before its new ones."""
        self._num_played += num_rows

    def seconds(self) -> float:
        """Return Python's planned time."""
        self.num_asked += 1
        self.catch_up()
        self.clock.python += _TICK_S
        return self.clock.python

    def between(self, first: int, second: int) -> float:
        """Return the milliseconds between two events; 0 if one was not recorded."""
        self.num_asked += 1
        self.catch_up()
        times = self.clock.events
        return 1e3 * (times[second] - times[first]) if {first, second} <= times.keys() else 0.0

    def stand_in_for_time(self) -> None:
        """Let `time` answer with the planned time to the program and the libraries that it uses.

        The standard library, torch, Frog and all threads but the first read the real time: their deadlines are real.
        """
        answers: dict[Any, Callable[..., Any]] = {time.sleep: self._sleeping(time.sleep)}
        for name in ("time", "perf_counter", "monotonic"):
            for original, unit in ((getattr(time, name), 1), (getattr(time, f"{name}_ns"), 10**9)):
                answers[original] = self._reading(original, original(), unit)
        for module in [time, timeit, *filter(self._is_program_s, list(sys.modules.values()))]:
            for name, value in list(vars(module).items()):
                if type(value) is _Function and value in answers:
                    setattr(module, name, answers[value])

    def _sleeping(self, original: Callable[[float], None]) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            if not self._is_seen() or not _is_main_thread():
                original(seconds)
                return
            self.catch_up()
            self.clock.python += seconds
            original(min(seconds, _REAL_SLEEP_S))

        return sleep

    def _reading(self, original: Callable[[], Any], started: Any, unit: int) -> Callable[[], Any]:
        def read() -> Any:
            if not self._is_seen() or not _is_main_thread():
                return original()
            return started + (int(unit * self.seconds()) if unit > 1 else self.seconds())

        read.__name__ = original.__name__
        return read

    def _is_seen(self) -> bool:
        """True if the caller of a function of `time` is the program or a library that it uses."""
        return self._is_theirs(sys._getframe(2).f_code.co_filename)

    def _is_program_s(self, module: Any) -> bool:
        """True for a module that was imported before the program started, and that the program uses."""
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and self._is_theirs(file)

    def _is_theirs(self, file: str) -> bool:
        if file not in self._theirs:
            is_standard = file.startswith((_STANDARD_LIBRARY, "<")) and "site-packages" not in file
            is_standard |= _COPY_OF_MULTIPROCESSING in file
            self._theirs[file] = not is_standard and not is_frog_or_torch(file)
        return self._theirs[file]


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()

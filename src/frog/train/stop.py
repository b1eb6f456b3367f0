"""Ctrl-C and SIGTERM as stop requests: recorded immediately, obeyed by all ranks together between two steps."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

from frog.core.errors import signal_code

_SAME_PRESS_S = 2.0
"""A terminal and torchrun each forward the same Ctrl-C; a signal after this time is a second request."""


class StopRequest:
    """The signal that asked this rank to stop, if any. A second Ctrl-C, later, ends the process immediately."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = 0.0

    def install(self) -> None:
        """Install handlers for SIGINT and SIGTERM."""
        signal.signal(signal.SIGINT, self._note)
        signal.signal(signal.SIGTERM, self._note)

    @property
    def wanted(self) -> bool:
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal number, as in shells; SIGTERM's if only another rank received a signal."""
        return signal_code(self.signal_number or signal.SIGTERM)

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal_number is None:
            self.signal_number, self._since = signal_number, now
        elif signal_number == signal.SIGINT and now - self._since > _SAME_PRESS_S:
            os._exit(signal_code(signal_number))

"""crash.txt: Python's fault handler, for what ends a process without an exception or keeps all its threads waiting.

The program's own use of `faulthandler` comes first: there is one handler and one timer per process.
"""

from __future__ import annotations

import faulthandler
import os
import time
from typing import Any

_STUCK_S, _AGAIN_S = 30.0, 5.0
_QUIET_BEFORE_S, _QUIET_AFTER_S = 0.2, 0.1
"""How long the observer rests around a dump that the program has ordered."""
_MOST_BYTES = 1 << 20


class Crashes:
    """Writes the stacks at a fatal signal, and when no Python code could run for 30 s."""

    def __init__(self, path: str) -> None:
        self._descriptor: int | None = None
        self._armed_s = -_AGAIN_S
        self._timer_is_ours = True
        self._dump_due_s = -_AGAIN_S
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o666)
        except OSError:
            return
        if not faulthandler.is_enabled():
            faulthandler.enable(self._descriptor)
            self._hide_handler()
        self._leave_timer_to_program()

    def _hide_handler(self) -> None:
        """Let `faulthandler.is_enabled()` tell the program what it would be without the observer."""
        enable, disable = faulthandler.enable, faulthandler.disable
        own = {"enabled": False}

        def enable_own(*args: Any, **kwargs: Any) -> None:
            enable(*args, **kwargs)
            own["enabled"] = True

        def disable_own() -> bool:
            was, own["enabled"] = own["enabled"], False
            disable()
            return was

        faulthandler.enable = enable_own
        faulthandler.disable = disable_own  # type: ignore[assignment]  # it does return a bool
        faulthandler.is_enabled = lambda: own["enabled"]

    def _leave_timer_to_program(self) -> None:
        """Stop using the timer as soon as the program does."""
        self._start_timer = start = faulthandler.dump_traceback_later

        def start_own(*args: Any, **kwargs: Any) -> None:
            self._timer_is_ours = False
            start(*args, **kwargs)
            self._dump_due_s = time.monotonic() + (args[0] if args else kwargs["timeout"])

        faulthandler.dump_traceback_later = start_own

    def is_dump_due(self) -> bool:
        """Return whether the program's own timer is due: its dump ends early at a thread that runs meanwhile."""
        return -_QUIET_BEFORE_S < time.monotonic() - self._dump_due_s < _QUIET_AFTER_S

    def beat(self) -> None:
        """Restart the timer, every few seconds since each start is a thread."""
        now_s = time.monotonic()
        if self._descriptor is None or not self._timer_is_ours or now_s - self._armed_s < _AGAIN_S:
            return
        self._armed_s = now_s
        if os.fstat(self._descriptor).st_size < _MOST_BYTES:
            self._start_timer(_STUCK_S, file=self._descriptor)

    def stop_timer(self) -> None:
        """Stop the timer before a fork: a child that has its state but not its thread would block when it exits."""
        if self._descriptor is not None and self._timer_is_ours:
            faulthandler.cancel_dump_traceback_later()
            self._armed_s = time.monotonic()  # the next start is not before the fork is over

"""Ctrl-C while a command is loading: the process ends without a traceback."""

from __future__ import annotations

import contextlib
import signal


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process immediately, as it does for programs not written in Python."""
    _handle(signal.default_int_handler, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    _handle(signal.SIG_DFL, signal.default_int_handler)


def _handle(before: object, after: signal.Handlers | object) -> None:
    """Change the handler, unless other code has set one; only the main thread may."""
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) == before:
            signal.signal(signal.SIGINT, after)  # type: ignore[arg-type]

"""Ctrl-C while a command still loads: the process ends without a traceback."""

from __future__ import annotations

import contextlib
import signal


def end_at_interrupt() -> None:
    """From now on Ctrl-C ends this process at once, as it ends programs that are not written in Python."""
    _handle(signal.default_int_handler, signal.SIG_DFL)


def raise_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again."""
    _handle(signal.SIG_DFL, signal.default_int_handler)


def _handle(before: object, after: signal.Handlers | object) -> None:
    """Change the handler, unless someone else has set one; only the main thread may."""
    with contextlib.suppress(ValueError):
        if signal.getsignal(signal.SIGINT) == before:
            signal.signal(signal.SIGINT, after)  # type: ignore[arg-type]

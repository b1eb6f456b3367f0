"""Ctrl-C while a command loads: it ends at once, with exit code 130, instead of a traceback from inside an import.

`frog/__init__.py` imports this first, so it loads no other module. Nothing needs to be cleaned up that early.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; `signal` would import `enum`, which takes longer
import os
import sys

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ends: what a shell reports for SIGINT."""


def is_command() -> bool:
    """True if this process is the `frog` command, not another program that imports Frog."""
    first = next(iter(getattr(sys, "argv", [])), "")
    if first == "-m":  # `python -m frog`, while it looks for the module
        words = sys.orig_argv
        return "-m" in words[:-1] and words[words.index("-m") + 1] in ("frog", "frog.cli")
    return os.path.basename(first) == "frog"


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process immediately."""
    _handle(_signal.default_int_handler, _end)


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    _handle(_end, _signal.default_int_handler)


class EndedByInterrupt:
    """A block, such as imports, that Ctrl-C ends together with the process."""

    def __enter__(self) -> None:
        end_at_interrupt()

    def __exit__(self, *error: object) -> None:
        raise_interrupts()


def _end(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def _handle(before: object, after: object) -> None:
    """Change the handler, unless other code has set one, or a shell that ignores Ctrl-C; only the main thread may."""
    try:
        if _signal.getsignal(_signal.SIGINT) == before:
            _signal.signal(_signal.SIGINT, after)
    except ValueError:
        pass

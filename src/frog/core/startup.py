"""The first moments of a process of Frog's: Ctrl-C while it loads, and texts in UTF-8 whatever the locale is.

`frog/__init__.py` imports this first, so it loads no other module.
"""

from __future__ import annotations

import _locale  # built in, like `_signal`
import _signal  # type: ignore[import-not-found]  # built in; `signal` would import `enum`, which takes longer
import os
import sys

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ends: what a shell reports for SIGINT."""


def is_command() -> bool:
    """True if this process is the `frog` command, not another program that imports Frog."""
    first = next(iter(getattr(sys, "argv", [])), "")
    return _module() in ("frog", "frog.cli") or os.path.basename(first) == "frog"


def is_own() -> bool:
    """True if this process is the `frog` command or another program of Frog's, such as `python -m frog.train`."""
    return is_command() or _module().startswith("frog.")


def _module() -> str:
    """Return the module of `python -m MODULE`, empty for another process."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in ("-W", "-X"):
            next(words, "")
        elif not word.startswith("-") or word == "-c":
            return ""
    return ""


def use_utf8() -> None:
    """Read and write files as UTF-8 where the locale or PYTHONUTF8=0 asks for another encoding.

    Frog's own files and the course are in UTF-8. Only this process changes: programs that it starts see the user's
    locale.
    """
    if sys.flags.utf8_mode or _locale.getencoding().lower() in ("utf-8", "utf8"):
        return
    for name in ("C.UTF-8", "UTF-8", "en_US.UTF-8"):
        try:
            _locale.setlocale(_locale.LC_CTYPE, name)
            return
        except _locale.Error:  # type: ignore[attr-defined]
            pass


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process immediately: nothing needs to be cleaned up so early."""
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

"""Exit codes. Python calls a process that signal n killed -n; a shell says 128 + n, and so does Frog to its caller."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; a number that this system has no name for stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_code(number: int) -> int:
    """The exit code of a program that ends because of a signal."""
    return 128 + number


ASKED_TO_STOP = (signal_code(signal.SIGINT), signal_code(signal.SIGTERM))
"""Exit codes of a program of Frog's that has been asked to stop, and does."""


def shell_code(code: int) -> int:
    """Popen's return code as a shell says it."""
    return code if code >= 0 else signal_code(-code)


def describe_exit(code: int) -> str:
    """How a process with Popen's return code ended: "was killed by SIGKILL", "ended with exit code 3"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

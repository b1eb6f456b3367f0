"""Exit codes. Python reports a process killed by signal n as -n; a shell reports 128 + n, and so does Frog."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """Return `SIGKILL` for 9; a number without a name on this system stays a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_code(number: int) -> int:
    """Return the exit code of a program that a signal ends."""
    return 128 + number


ASKED_TO_STOP = (signal_code(signal.SIGINT), signal_code(signal.SIGTERM))
"""Exit codes of a Frog program that was asked to stop, and stopped."""


def shell_code(code: int) -> int:
    """Convert Popen's return code to a shell's."""
    return code if code >= 0 else signal_code(-code)


def describe_exit(code: int) -> str:
    """Describe how a process with Popen's return code ended: "was killed by SIGKILL", "ended with exit code 3"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"

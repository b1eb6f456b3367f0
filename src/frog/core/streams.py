"""Reliable standard streams, regardless of how the program was started."""

from __future__ import annotations

import io
import os
import sys
import termios

_MOST_CHARS = 10_000
"""Most characters of an answer line."""


def make_streams_whole() -> None:
    """Open closed streams (`frog quiz 1 <&-`) on /dev/null, and accept arbitrary bytes as typed text.

    Otherwise the next opened file would get the number of the closed stream, and receive the printed output.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if not _is_open(number):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opens at the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def read_line(prompt: str) -> str:
    """Do the same as `input`, but limit the length of a line, since a line from a pipe may be endless.

    Raises:  EOFError at the end of the input.
    """
    if sys.stdin.isatty():
        return input(prompt)
    print(prompt, end="", flush=True)
    line = sys.stdin.readline(_MOST_CHARS)
    if not line or len(line) == _MOST_CHARS:
        raise EOFError
    return line


def discard_typed_ahead() -> None:
    """Discard what the user typed while no program was reading."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

"""Standard input, output and errors as a program may rely on them, whatever it was started with."""

from __future__ import annotations

import io
import os
import sys
import termios

_MOST_CHARS = 10_000
"""Of a line that is an answer."""


def make_streams_whole() -> None:
    """Open what was closed (`frog quiz 1 <&-`) on nothing, and take any bytes that are typed as text.

    A descriptor that stayed closed would be that of the next file, which would get what is printed.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if not _is_open(number):
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, which is this
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def read_line(prompt: str) -> str:
    """What `input` gives; of a pipe's line, which may have no end, as much as somebody would type.

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
    """Forget what was typed at the terminal while nothing was reading it."""
    if sys.stdin.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True

"""Line wrapping for the terminal: long lines break between words.

A pipe or a file has no width, so its lines are not wrapped.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO

from frog.core.env import variable


def terminal_columns(stream: TextIO | None = None) -> int | None:
    """Return the width of the terminal behind a stream (default: standard output); None if it is not a terminal."""
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def shows_colour() -> bool:
    """True if standard output is a terminal with colours and NO_COLOR is not set."""
    return sys.stdout.isatty() and not variable("NO_COLOR") and variable("TERM") != "dumb"


def wrapped(line: str, columns: int | None, hang: int = 2) -> list[str]:
    """Break a line between words; the continuation lines are indented `hang` columns more than the first.

    A word longer than a line is not broken, so that a path can be copied.
    """
    if columns is None or len(line) <= columns:
        return [line]
    margin = " " * min(len(line) - len(line.lstrip()) + hang, columns // 2)
    return textwrap.wrap(
        line, columns, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False, tabsize=4
    ) or [""]


def wrapped_lines(text: str, columns: int | None, hang: int = 2) -> str:
    """Wrap each line of a text."""
    return "\n".join(part for line in text.split("\n") for part in wrapped(line, columns, hang))

"""Answers typed in a terminal, or from a pipe, a line each."""

from __future__ import annotations

import sys

from frog.core.printable import printable
from frog.core.schema import shortened

_LEAVE = {"q", "quit", "exit"}


def read_answer(prompt: str) -> str | None:
    """The next line, without blanks around it; None to leave: q, Ctrl-C, the end of the input."""
    try:
        text = input(prompt).strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    if not sys.stdin.isatty():
        print(printable(shortened(text, 200)))
    return None if text.lower() in _LEAVE else text

"""Answers typed in a terminal, or from a pipe, a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from frog.core.printable import printable
from frog.core.schema import shortened
from frog.core.streams import read_line

_MOST_TRIES = 20
_LEAVE = {"q", "quit", "exit"}


def read_answers(prompt: str) -> Iterator[str]:
    """Answers to one question, until one is taken: as many as somebody tries. A pipe may have no end."""
    for _ in range(_MOST_TRIES):
        if (text := read_answer(prompt)) is None:
            return
        yield text
    print(f"no valid answer in {_MOST_TRIES} lines: giving up")


def read_answer(prompt: str) -> str | None:
    """The next line, without blanks around it; None to leave: q, Ctrl-C, the end of the input."""
    try:
        text = read_line(prompt).strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    if not sys.stdin.isatty():
        print(printable(shortened(text, 200)))
    return None if text.lower() in _LEAVE else text

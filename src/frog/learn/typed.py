"""Read answers from a terminal or a pipe, one per line."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from frog.core.schema import shortened
from frog.core.terminal import printable, read_line

_MOST_TRIES = 20
_LEAVE = {"q", "quit", "exit"}


def read_answers(prompt: str) -> Iterator[str]:
    """Yield answers to one question until the caller accepts one. Limited, because a pipe may be endless."""
    for _ in range(_MOST_TRIES):
        if (text := read_answer(prompt)) is None:
            return
        yield text
    print(f"no valid answer after {_MOST_TRIES} attempts: giving up")


def read_answer(prompt: str) -> str | None:
    """Read the next line, stripped. Return None to quit: for q, Ctrl-C, or the end of the input."""
    try:
        text = read_line(prompt).strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    if not sys.stdin.isatty():
        print(printable(shortened(text, 200)))
    return None if text.lower() in _LEAVE else text

"""Ask for and validate the learner's name, which the instructor sees."""

from __future__ import annotations

import sys

from frog.core.errors import UsageError
from frog.core.terminal import read_line

_MOST_CHARACTERS = 80
_MOST_TRIES = 3


def checked_name(text: str) -> str:
    """Return the name with single spaces.

    Raises:  UsageError if the name is empty, too long, or not printable.
    """
    name = " ".join(text.split())
    if not name or len(name) > _MOST_CHARACTERS or not name.isprintable():
        raise UsageError(
            f"{text[:_MOST_CHARACTERS]!r} is not a valid name", f"use 1 to {_MOST_CHARACTERS} printable characters"
        )
    return name


def typed_name(default: str) -> str:
    """Ask for the name at the terminal. Return the default for an empty line, or without a terminal."""
    if not sys.stdin.isatty():
        return default
    for _ in range(_MOST_TRIES):
        try:
            text = read_line(f"Your name, as your instructor will see it (Enter: {default}): ")
            return checked_name(text) if text.strip() else default
        except EOFError:
            break
        except UsageError as error:
            print(error)
    return default

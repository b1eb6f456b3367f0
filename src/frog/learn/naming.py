"""The learner's name, as an instructor reads it: checked, and asked for at a terminal."""

from __future__ import annotations

import sys

from frog.core.errors import UsageError
from frog.core.streams import read_line

_MOST_CHARACTERS = 80
_MOST_TRIES = 3


def checked_name(text: str) -> str:
    """The name with single spaces.

    Raises:  UsageError if it is empty, too long, or cannot be printed.
    """
    name = " ".join(text.split())
    if not name or len(name) > _MOST_CHARACTERS or not name.isprintable():
        raise UsageError(
            f"{text[:_MOST_CHARACTERS]!r} cannot be a name", f"1 to {_MOST_CHARACTERS} characters that can be printed"
        )
    return name


def typed_name(default: str) -> str:
    """The name that is typed at the terminal; the default for an empty line, and if there is no terminal."""
    if not sys.stdin.isatty():
        return default
    for _ in range(_MOST_TRIES):
        try:
            text = read_line(f"Your name, as your instructor will read it (Enter: {default}): ")
            return checked_name(text) if text.strip() else default
        except EOFError:
            break
        except UsageError as error:
            print(error)
    return default

"""A known error: what it looks like in a log, what it means, and what to do."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

GAP = "…"
"""Replaces numbers and names in a message, as in docs/troubleshooting.md."""
_MOST_IN_A_GAP = 300


class Level(IntEnum):
    """How close an error is to the cause of a failed job; the lowest level in a log wins."""

    CAUSE = 0
    """It ends a process by itself."""
    SYMPTOM = 1
    """It shows that something went wrong, which may have happened elsewhere: a hang, a generic error, an exit code."""
    HINT = 2
    """A warning that can be the cause."""
    CONSEQUENCE = 3
    """It follows from the failure of another process."""


@dataclass(frozen=True)
class KnownError:
    """An entry of the table."""

    id: str
    looks_like: tuple[str, ...]
    """Pieces of the message, in any case; `…` replaces numbers and names."""
    cause: str
    advice: str
    level: Level = Level.CAUSE
    sure: bool = True
    """False if the same message has several causes."""
    section: int | None = None
    """Number of the section of docs/troubleshooting.md."""
    alone: Level | None = None
    """Level in a line that is not the end of a traceback, if it differs."""

    @cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str] | None], ...]:
        return tuple(_pattern(message.lower()) for message in self.looks_like)

    def matches(self, lowered: str) -> bool:
        """True if one of the messages is in a text of lower-case letters."""
        return any(
            needle in lowered and (pattern is None or pattern.search(lowered) is not None)
            for needle, pattern in self._patterns
        )

    def level_of(self, in_traceback: bool) -> Level:
        return self.level if in_traceback or self.alone is None else self.alone


def _pattern(message: str) -> tuple[str, re.Pattern[str] | None]:
    """Return the longest literal part, for a fast search, and the pattern of the whole message if it has gaps."""
    parts = message.split(GAP)
    needle = max(parts, key=len)
    if len(parts) == 1:
        return needle, None
    return needle, re.compile(f".{{0,{_MOST_IN_A_GAP}}}?".join(map(re.escape, parts)), re.DOTALL)


def find_known(text: str, errors: tuple[KnownError, ...]) -> KnownError | None:
    """Return the first entry that matches: the table lists specific errors before general ones."""
    lowered = text.lower()
    return next((error for error in errors if error.matches(lowered)), None)

"""A known error: what it looks like in a log, what it means, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import IntEnum

GAP = "…"
"""Replaces numbers and names in a message, as in docs/troubleshooting.md."""
_MOST_IN_A_GAP = 300
_GRAM = 5


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
    ASIDE = 4
    """Words that many harmless lines contain: shown with an answer, never as one."""


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
    explains: tuple[str, ...] = ()
    """Ids of errors that follow from this one: a warning counts as the cause if one of them ends the job."""
    yields: bool = False
    """True if it also follows from the death of another rank: a cause of that in the same log comes first."""
    alone: Level | None = None
    """Level in a line that is not the end of a traceback, if it differs."""

    def level_of(self, in_traceback: bool) -> Level:
        return self.level if in_traceback or self.alone is None else self.alone


class KnownErrors:
    """A table of known errors with an index, so that a line that matches nothing costs little."""

    def __init__(self, errors: tuple[KnownError, ...]) -> None:
        self.errors = errors
        self._index: dict[str, list[tuple[int, _Pattern]]] = {}
        patterns = [
            (number, _Pattern.of(message)) for number, error in enumerate(errors) for message in error.looks_like
        ]
        common = Counter(gram for _, pattern in patterns for gram in set(_grams(pattern.needle)))
        for number, pattern in patterns:
            rarest = min(_grams(pattern.needle), key=lambda gram: (common[gram], gram))
            self._index.setdefault(rarest, []).append((number, pattern))
        self._keys = frozenset(self._index)

    def find(self, text: str) -> KnownError | None:
        """Return the first entry that matches: the table lists specific errors before general ones."""
        lowered = f"\n{text}\n".lower()
        hits = self._keys.intersection(_grams(lowered))
        numbers = [number for gram in hits for number, pattern in self._index[gram] if pattern.is_in(lowered)]
        return self.errors[min(numbers)] if numbers else None


@dataclass(frozen=True)
class _Pattern:
    """A message: its longest literal part, and the whole as a pattern if it has gaps."""

    needle: str
    whole: re.Pattern[str] | None

    @classmethod
    def of(cls, message: str) -> _Pattern:
        parts = message.lower().replace(f" {GAP} ", f" {GAP}").split(GAP)  # the gap may be empty
        joined = f".{{0,{_MOST_IN_A_GAP}}}?".join(map(re.escape, parts))
        return cls(max(parts, key=len), re.compile(joined, re.DOTALL) if len(parts) > 1 else None)

    def is_in(self, lowered: str) -> bool:
        return self.needle in lowered and (self.whole is None or self.whole.search(lowered) is not None)


def _grams(text: str) -> list[str]:
    """Return the pieces of a text that the index has as keys."""
    return [text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)] or [text]

"""A known error: what it looks like in a log, what it means, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Annotated

import msgspec

from frog.core.schema import Typed

GAP = "…"
"""Replaces numbers and names in a message, as in docs/troubleshooting.md."""
_MOST_IN_A_GAP = 300
_GRAM = 5
_END_BY_SIGNAL = re.compile(
    r"(?:exit ?codes?|exit ?status|status code|return ?code|exited with(?: code)?)\s{0,3}[:=]?\s?"
    r"(?:-(?P<negative>[4-9]|11|15)|(?P<shells>13[24-79]|143)|(?P<windows>32212\d{5}|-107374\d{4}))\b"
    r"|\bsignal:? (?:[a-z ]{1,40}\()?(?P<number>[4-9]|11|15)\b(?! ?(?:of|/|\.\d))"
    r"|(?:\bsignals\.|\bsignal |\*\*\* )(?P<name>sig(?:ill|abrt|bus|fpe|kill|segv|term))\b"
    r"|\b(?P<received>sig(?:ill|abrt|bus|fpe|kill|segv|term)) is received"
)  # fmt: skip
"""An end by a signal in the words of a launcher or of a crash handler: Python's negative codes, a shell's 128 + N, a
status of Windows."""
_SIGNALS = {
    "sigill": 4, "sigabrt": 6, "sigbus": 7, "sigfpe": 8, "sigkill": 9, "sigsegv": 11, "sigterm": 15,
}  # fmt: skip
"""Linux's numbers, whatever system reads the log."""
_OF_WINDOWS = {0xC0000005: 11, 0xC000001D: 4, 0xC0000094: 8, 0xC00000FD: 11, 0xC0000374: 11, 0xC0000409: 11}
"""Windows' words for the same: an access that is not allowed, a stack or a heap that is damaged."""
_SENT = re.compile(r"\b(?:send|sent|sending)\b.{0,40}\bsignal (?:\d|sigkill)")
"""Says that a launcher ends another process with a signal."""


Text = Annotated[str, msgspec.Meta(min_length=1)]


class Level(Enum):
    """How close an error is to the cause of a failed job; the lowest level in a log wins.

    The value is how the table writes it; levels are ordered as they stand here.
    """

    CAUSE = "cause"
    """It ends a process by itself."""
    SYMPTOM = "symptom"
    """It shows that something went wrong, which may have happened elsewhere: a hang, a generic error, an exit code."""
    HINT = "hint"
    """A warning that can be the cause."""
    CONSEQUENCE = "consequence"
    """It follows from the failure of another process."""
    ASIDE = "aside"
    """Words that many harmless lines contain: shown with an answer, never as one."""

    def __lt__(self, other: Level) -> bool:
        return _ORDER[self] < _ORDER[other]


_ORDER = {level: number for number, level in enumerate(Level)}


class KnownError(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An entry of the table."""

    id: Text
    looks_like: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)]
    """Pieces of the message, in any case; `…` replaces numbers and names."""
    cause: Text
    advice: Text
    title: str = ""
    """A heading, if the first clause of `cause` is too long for one."""
    level: Level = Level.CAUSE
    sure: bool = True
    """False if the same message has several causes."""
    kinds: tuple[Text, ...] = ()
    """Ids of kinds that say more than this entry, if they fit the message."""
    section: int | None = None
    """Number of the section of docs/troubleshooting.md."""
    explains: tuple[str, ...] = ()
    """Ids of errors that follow from this one: a warning counts as the cause if one of them ends the job."""
    yields: bool = False
    """True if it also follows from the death of another rank: a cause of that in the same log comes first."""
    alone: Level | None = None
    """Level in a line that is not the end of a traceback, if it differs."""
    code: tuple[Text, ...] = ()
    """Pieces of files, functions and source lines, of which the exception's traceback must have one."""
    least: Annotated[int, msgspec.Meta(ge=1)] = 1
    """How often a log must have the message."""
    signal: int | None = None
    """Number of the signal whose end it is: each form of it counts (exit code -9 or 137, signal 9, SIGKILL)."""

    def level_of(self, in_traceback: bool) -> Level:
        return self.level if in_traceback or self.alone is None else self.alone


class KnownErrors:
    """A table of known errors with an index, so that a line that matches nothing costs little."""

    def __init__(self, errors: tuple[KnownError, ...]) -> None:
        self.errors = errors
        self._of_signal = {error.signal: number for number, error in enumerate(errors) if error.signal is not None}
        self._index: dict[str, list[tuple[int, _Pattern]]] = {}
        patterns = [
            (number, _Pattern.of(message)) for number, error in enumerate(errors) for message in error.looks_like
        ]
        common = Counter(gram for _, pattern in patterns for gram in set(_grams(pattern.needle)))
        for number, pattern in patterns:
            rarest = min(_grams(pattern.needle), key=lambda gram: (common[gram], gram))
            self._index.setdefault(rarest, []).append((number, pattern))
        self._keys = frozenset(self._index)

    def find(self, text: str, code: str = "") -> KnownError | None:
        """Return the first entry that matches: the table lists specific errors before general ones.

        code: the files, functions and source lines of the traceback that ends with the text.
        """
        lowered = f"\n{text}\n".lower()
        hits = self._keys.intersection(_grams(lowered))
        numbers = [
            number
            for gram in hits
            for number, pattern in self._index[gram]
            if pattern.is_in(lowered) and _has_code(self.errors[number], code)
        ]
        if (ended_by := signal_of(lowered)) in self._of_signal:
            numbers.append(self._of_signal[ended_by])
        return self.errors[min(numbers)] if numbers else None


@dataclass(frozen=True)
class _Pattern:
    """A message: the literal parts between its gaps, of which the longest is searched first."""

    parts: tuple[str, ...]
    needle: str

    @classmethod
    def of(cls, message: str) -> _Pattern:
        parts = message.lower().replace(f" {GAP} ", f" {GAP}").split(GAP)  # the gap may be empty
        return cls(tuple(parts), max(parts, key=len))

    def is_in(self, lowered: str) -> bool:
        return self.needle in lowered and (len(self.parts) == 1 or self._whole.search(lowered) is not None)

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        """The parts with their gaps as a pattern; compiled when a text contains the longest part."""
        return re.compile(f".{{0,{_MOST_IN_A_GAP}}}?".join(map(re.escape, self.parts)), re.DOTALL)


def signal_of(lowered: str) -> int | None:
    """Return the number of the signal by which a process ended, if a text in lower case says so."""
    if not any(word in lowered for word in ("sig", "exit", "return", "status code")):
        return None
    match = _END_BY_SIGNAL.search(lowered)
    if match is None or _SENT.search(lowered):
        return None
    if name := match["name"] or match["received"]:
        return _SIGNALS[name]
    if match["windows"]:
        return _OF_WINDOWS.get(int(match["windows"]) % 2**32)
    return int(match["negative"] or match["number"] or int(match["shells"]) - 128)


def _has_code(error: KnownError, code: str) -> bool:
    return not error.code or any(piece in code for piece in error.code)


def _grams(text: str) -> list[str]:
    """Return the pieces of a text that the index has as keys."""
    return [text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)] or [text]

"""All errors, in one class tree. A message says what happened, with both values; a hint says what to do next.

Both are for people. The facts of an error are for programs.
"""

from __future__ import annotations

import time
from typing import Any

from frog.core.facts import ErrorFacts, system_cause

MOST_WORDS = 16_000
"""Most characters of an error message, which may quote a whole file."""


class FrogError(Exception):
    """An error that Frog can explain. Shown without a traceback, as `what` and then `try: hint`."""

    exit_code = 1

    def __init__(self, what: str, hint: str | None = None, facts: ErrorFacts | None = None) -> None:
        super().__init__(what)
        self.what = _bounded(what)
        self.hint = hint and _bounded(hint)
        self.facts = facts or ErrorFacts()

    def __str__(self) -> str:
        return self.what if self.hint is None else f"{self.what}\n  try: {self.hint}"


def _bounded(words: str) -> str:
    return words if len(words) <= MOST_WORDS else f"{words[:MOST_WORDS]}…"


class UsageError(FrogError):
    """The user asked for something impossible: wrong arguments, a missing folder."""

    exit_code = 2


class ConfigError(UsageError):
    """A run file or a model file contains an invalid value."""


class DataError(UsageError):
    """A corpus or a prepared data set cannot be used."""


class ShapeError(UsageError):
    """Two sizes that must be equal differ."""


class RunError(UsageError):
    """A run folder is missing, unfinished or unreadable."""


class CheckpointError(FrogError):
    """A checkpoint cannot be written, or no checkpoint can be trusted."""


class CommError(FrogError):
    """A collective or the start of a world failed."""


class LostError(CommError):
    """This rank is excluded from a run that continues without it."""


class LaunchError(FrogError):
    """A world could not be started, or one of its ranks failed."""


class HangError(LaunchError):
    """The ranks of a world waited for each other until the deadline."""


class OwnStrategyError(FrogError):
    """A strategy of one's own failed, or broke a rule of its interface; names the file and the line."""


class NonFiniteError(FrogError):
    """A loss or a gradient is NaN or infinite."""


def report_error(error: BaseException, facts: ErrorFacts | None = None) -> dict[str, Any]:
    """Describe an error for the events and the launcher: its class, message, facts and time.

    facts: for an error that is not one of Frog's, the facts that the caller knows.
    """
    what, hint = (error.what, error.hint) if isinstance(error, FrogError) else (str(error), None)
    known = error.facts if isinstance(error, FrogError) else facts or ErrorFacts(cause=system_cause(error))
    return {
        "type": type(error).__name__,
        "message": what,
        "hint": hint,
        "facts": known.as_json(),
        "unix_ns": time.time_ns(),
    }

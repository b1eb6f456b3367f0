"""start/steps.json: which steps of `frog learn start` are done. Loads nothing that runs a command."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import Name, Typed, read_typed

FOLDER, RECORD = "start", "steps.json"
STEP_NAMES = ("two-ranks", "killed", "skipped", "taken-out")


class Finished(Typed, frozen=True, kw_only=True):
    """The finished steps, each with the run that showed it."""

    KIND: ClassVar[str] = "the finished steps of `frog learn start`"
    FORMAT: ClassVar[int | None] = 1

    runs: dict[Name, Name] = msgspec.field(default_factory=dict)


def read_finished(course: Path) -> Finished:
    """Read the finished steps of a course folder; none if the learner has not started.

    Raises:  UsageError if the file is damaged.
    """
    path = course / FOLDER / RECORD
    try:
        return read_typed(path, Finished, "remove this file and start again: frog learn start", UsageError)
    except FileNotFoundError:
        return Finished()


def is_finished(course: Path) -> bool:
    """Return True if all steps are done.

    Raises:  UsageError if the record is damaged.
    """
    return set(STEP_NAMES) <= read_finished(course).runs.keys()

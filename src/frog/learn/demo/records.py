"""The record of each played step in a demo folder: a JSON file, and next to it the full output."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from frog.core.errors import UsageError
from frog.core.schema import Amount, Positive, Typed, read_typed, write_typed
from frog.learn.demo.demo_session import Step

_RECORDS = "[0-9][0-9].json"


class Played(Typed, kw_only=True, frozen=True):
    """The last execution of a step."""

    KIND: ClassVar[str] = "a played step of a demo"
    FORMAT: ClassVar[int | None] = 1

    number: Positive
    step: Step
    command: str
    """The step's command as executed."""
    code: int
    seconds: Amount

    @property
    def is_right(self) -> bool:
        """True if the step ended as intended."""
        return (self.code != 0) is self.step.fails


def output_path(folder: Path, number: int) -> Path:
    """Return the path of a step's output file."""
    return folder / f"{number:02}.txt"


def write_record(folder: Path, played: Played) -> None:
    write_typed(folder / f"{played.number:02}.json", played)


def read_records(folder: Path) -> list[Played]:
    """Read the records of all played steps, in order."""
    hint = "remove this file and play the step again: frog demo ... --from N"
    return [read_typed(path, Played, hint, UsageError) for path in sorted(folder.glob(_RECORDS))]

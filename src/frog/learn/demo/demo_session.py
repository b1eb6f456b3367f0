"""A session's demo as data: for each step the words, the question, the command and the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import Positive, Typed, convert, read_toml

Name = Literal["a", "b", "c", "d", "e"]
NAMES: tuple[Name, ...] = ("a", "b", "c", "d", "e")
FREE_PORT = "FREE_PORT"
"""Placeholder in a command; the player replaces it with the number of a free port."""
_FOLDER = Path(__file__).parent / "sessions"


class Step(Typed, kw_only=True, frozen=True):
    """One step of a demo."""

    title: str
    """The curriculum's wording."""
    minutes: Positive
    """Duration in a class, with discussion."""
    say: str
    ask: str = ""
    """The question that the class answers before the command runs. `say` does not give the answer away."""
    run: str
    """A bash command, run in the demo folder."""
    look: str
    """The answer, and where to see it in the output."""
    makes: tuple[str, ...] = ()
    """Names of runs that the command creates; the player removes them before a retry."""
    fails: bool = False
    """True if the step demonstrates a failure of the command."""
    show_last: Positive | None = None
    """Number of last lines to show on the screen; the step's file and the page contain all lines."""
    timeout_s: Positive = 300


class Session(Typed, kw_only=True, frozen=True):
    """A demo."""

    title: str
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]

    @property
    def minutes(self) -> int:
        return sum(step.minutes for step in self.steps)


def read_session(name: Name) -> Session:
    path = _FOLDER / f"{name}.toml"
    return convert(read_toml(path, UsageError), Session, str(path), error=UsageError)

"""A session's demo as data: what to say, what to ask, what to run, where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import Positive, Typed, convert, read_toml

Name = Literal["a", "b", "c"]
NAMES: tuple[Name, ...] = ("a", "b", "c")
FREE_PORT = "FREE_PORT"
"""In a command: the player puts the number of a free port here."""
_FOLDER = Path(__file__).parent / "sessions"


class Step(Typed, kw_only=True, frozen=True):
    """One thing that is shown."""

    title: str
    """The words of the curriculum."""
    minutes: Positive
    """As a class takes them, with the discussion."""
    say: str
    ask: str = ""
    """What the class predicts before the command runs. `say` does not give the answer away."""
    run: str
    """A command for bash, in the demo's folder."""
    look: str
    """The answer, and where in the output it is."""
    makes: tuple[str, ...] = ()
    """Runs that it makes: removed before it is tried again."""
    fails: bool = False
    """True if the command is meant to fail: the failure is what is shown."""
    show_last: Positive | None = None
    """Show only this many last lines on the screen; the step's file and the page have all of them."""
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

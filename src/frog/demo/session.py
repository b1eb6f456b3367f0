"""A session's demo as data: what is said, what is run, what is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import Positive, Typed, convert, read_toml

Name = Literal["a", "b", "c"]
NAMES: tuple[Name, ...] = ("a", "b", "c")
_FOLDER = Path(__file__).parent / "sessions"


class Step(Typed, kw_only=True, frozen=True):
    """One thing that is shown."""

    title: str
    """The words of the curriculum."""
    say: str
    run: str
    """A command for bash, in the demo's folder."""
    look: str
    """Where to look in what it prints."""
    makes: tuple[str, ...] = ()
    """Runs that it makes: removed before it is tried again."""
    fails: bool = False
    """It is to end with an error: that is what is shown."""
    timeout_s: Positive = 300


class Session(Typed, kw_only=True, frozen=True):
    """A demo."""

    title: str
    minutes: Positive
    """As a room takes them, with what is said."""
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1)]


def read_session(name: Name) -> Session:
    path = _FOLDER / f"{name}.toml"
    return convert(read_toml(path, UsageError), Session, str(path), error=UsageError)

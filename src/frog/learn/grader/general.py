"""General misconceptions, which the grader detects in any exercise."""

from __future__ import annotations

from frog.core.errors import UsageError
from frog.core.schema import Typed, convert, read_toml
from frog.learn.grader.exercise import LABS, Misconception

_FILE = LABS / "general.toml"


class _Table(Typed, kw_only=True, frozen=True):
    misconceptions: tuple[Misconception, ...]


def general() -> dict[str, Misconception]:
    """Return the general misconceptions by id. An exercise's manifest may override one with a more specific text."""
    table = convert(read_toml(_FILE, UsageError), _Table, str(_FILE), error=UsageError)
    return {known.id: known for known in table.misconceptions}

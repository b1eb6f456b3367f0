"""What came of a world, and why it did not come to its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.learn.grader.gate import Operation


@dataclass(frozen=True)
class Failure:
    """Why a world did not come to its end."""

    id: str
    observed: str
    rank: int
    where: str = ""
    drawing: str | None = None
    is_unsolved: bool = False
    """A stub said that it is to be filled in."""


@dataclass(frozen=True)
class Call(Operation):
    """An operation that a rank came to."""

    waited: bool = True
    """False for an asynchronous operation that the rank did not wait for."""
    overwritten: bool = False
    """The rank wrote to its tensors between the start of the operation and the wait."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "waited", self.waited or not self.is_async)


@dataclass
class World:
    """What came of a world."""

    size: int
    folder: Path
    """What the ranks have left."""
    values: list[Any]
    """What `work` returned on each rank; None where it did not."""
    output: list[str]
    calls: list[list[Call]]
    failure: Failure | None = None
    picture: str = ""

    def count(self, op: str, rank: int = 0) -> int:
        """How many operations of that name a rank came to."""
        return sum(call.op == op for call in self.calls[rank])

    def drawing(self) -> str:
        """Who waited for whom, in lines of text."""
        return self.picture

"""The outcome of a world: its results, or the reason why it did not finish."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frog.learn.grader.gate import Operation


@dataclass(frozen=True)
class Failure:
    """The reason why a world did not finish."""

    id: str
    observed: str
    rank: int
    where: str = ""
    drawing: str | None = None
    is_unsolved: bool = False
    """True if an unfilled stub raised NotImplementedError."""


@dataclass(frozen=True)
class Call(Operation):
    """An operation that a rank called."""

    waited: bool = True
    """False for an asynchronous operation that the rank did not wait for."""
    overwritten: bool = False
    """True if the rank wrote to its tensors between the start of the operation and the wait."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "waited", self.waited or not self.is_async)


@dataclass
class World:
    """The outcome of a world."""

    size: int
    folder: Path
    """The folder with the ranks' files."""
    values: list[Any]
    """The result of `work` on each rank; None if it did not return."""
    output: list[str]
    calls: list[list[Call]]
    failure: Failure | None = None
    picture: str = ""

    def count(self, op: str, rank: int = 0) -> int:
        """Return the number of operations with this name that a rank called."""
        return sum(call.op == op for call in self.calls[rank])

    def drawing(self) -> str:
        """Draw which rank waited for which, as text."""
        return self.picture

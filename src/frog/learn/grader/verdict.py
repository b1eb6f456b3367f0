"""What a check has found."""

from __future__ import annotations

from typing import Literal

import msgspec

from frog.core.schema import Typed


class Measured(Typed, kw_only=True, frozen=True):
    """A line under a passed check: what was measured, and what it was."""

    what: str
    value: str


class Verdict(Typed, kw_only=True, frozen=True):
    """What a check says of a learner's files: the same for the same files, but for seed and seconds."""

    exercise: str
    """Its id."""
    status: Literal["passed", "rejected", "unsolved", "broken"]
    """`unsolved`: the stub as it was, or one that says itself what is to be filled in. `broken`: the grader failed."""
    misconception: str | None = None
    observed: str | None = None
    """With numbers."""
    belief: str | None = None
    question: str | None = None
    drawing: str | None = None
    """Lines of text, at most 78 wide: who waited for whom."""
    where: str | None = None
    """A line of the learner's file: `step.py:12`."""
    measured: tuple[Measured, ...] = ()
    predicted: dict[str, float] = msgspec.field(default_factory=dict)
    """What was measured of that for which the manifest asks a prediction, by its id."""
    notes: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()
    """Sizes of the worlds that were run."""
    seed: int
    seconds: float
    output: str = ""
    """What the learner's code printed, shortened."""

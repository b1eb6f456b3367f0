"""The result of a check."""

from __future__ import annotations

from typing import Literal

import msgspec

from frog.core.schema import Typed


class Measured(Typed, kw_only=True, frozen=True):
    """A measurement in a passed verdict: its name and value."""

    what: str
    value: str


class Verdict(Typed, kw_only=True, frozen=True):
    """A check's result for a learner's files: the same for the same files, except for seed and seconds."""

    exercise: str
    """The exercise's id."""
    status: Literal["passed", "rejected", "unsolved", "broken"]
    """`unsolved`: the unchanged stub, or one that still raises "fill in". `broken`: the grader failed."""
    misconception: str | None = None
    observed: str | None = None
    """The observation, with numbers."""
    belief: str | None = None
    question: str | None = None
    drawing: str | None = None
    """A text drawing of which rank waited for which, at most 78 columns wide."""
    where: str | None = None
    """A line of the learner's file: `step.py:12`."""
    measured: tuple[Measured, ...] = ()
    predicted: dict[str, float] = msgspec.field(default_factory=dict)
    """The measured values for the manifest's predictions, by id."""
    notes: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()
    """Sizes of the worlds that the check ran."""
    seed: int
    seconds: float
    output: str = ""
    """The output of the learner's code, shortened."""

"""A lab's questions: labs/labN/quiz.toml (docs/exercises.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from frog.core.errors import UsageError
from frog.core.schema import Typed, convert, read_toml
from frog.learn.grader.exercise import LABS, Word

Text = Annotated[str, msgspec.Meta(min_length=1)]
Tolerance = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""Relative."""


class _Strict(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A typing error in a field's name is told."""


class Choice(_Strict, kw_only=True, frozen=True):
    text: Text
    right: bool = False
    belief: Text | None = None
    """What somebody believes who takes it; every wrong one says it."""


class NumberBelief(_Strict, kw_only=True, frozen=True):
    """A wrong number that a belief leads to."""

    value: float
    belief: Text
    tolerance: Tolerance = 0.01


class Question(_Strict, kw_only=True, frozen=True):
    """Single: one choice is right. Several: one or more are. Number: `answer`, within `tolerance`."""

    id: Word
    kind: Literal["single", "several", "number"]
    text: Text
    read: Text
    """The paragraph to read again: a page and a heading of it."""
    why: Text
    """Said after the answer, right or wrong."""
    first: bool = False
    """Whether it is one of those that decide if a learner is ready."""
    choices: tuple[Choice, ...] = ()
    answer: float | None = None
    unit: Literal["B", "s", "steps", "ranks", "%", ""] = ""
    tolerance: Tolerance = 0.01
    beliefs: tuple[NumberBelief, ...] = ()

    def problems(self) -> Iterator[str]:
        """What is wrong with the question itself."""
        num_right = sum(choice.right for choice in self.choices)
        if self.kind == "number":
            yield from self._problems_of_number()
        elif self.answer is not None or self.beliefs:
            yield f"kind {self.kind} has choices, no answer and beliefs"
        elif self.kind == "single" and num_right != 1:
            yield f"{num_right} right choices, expected 1"
        elif not num_right > 0 or len(self.choices) < 2:
            yield f"{num_right} right choices of {len(self.choices)}"
        for choice in self.choices:
            if choice.right == (choice.belief is not None):
                yield f"{choice.text!r}: a wrong choice has a belief, a right one has none"

    def _problems_of_number(self) -> Iterator[str]:
        if self.answer is None or self.choices:
            yield "kind number has an answer, and no choices"
            return
        for belief in self.beliefs:
            if is_near(belief.value, self.answer, self.tolerance + belief.tolerance):
                yield f"the wrong {belief.value:g} is within the tolerances of the answer, {self.answer:g}"


class Pool(_Strict, kw_only=True, frozen=True):
    KIND: ClassVar[str] = "a lab's questions"

    questions: tuple[Question, ...]


def is_near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * abs(expected)


def read_pools(labs: Path = LABS) -> dict[int, tuple[Question, ...]]:
    """The questions of each lab that has some.

    Raises:  UsageError that names file and place, or question.
    """
    paths = sorted(labs.glob("lab*/quiz.toml"))
    return {int(path.parent.name.removeprefix("lab")): _read_pool(path) for path in paths}


def _read_pool(path: Path) -> tuple[Question, ...]:
    hint = "see docs/exercises.md"
    questions = convert(read_toml(path, UsageError, hint), Pool, str(path), hint, UsageError).questions
    for question in questions:
        for problem in question.problems():
            raise UsageError(f"{path}: question {question.id}: {problem}", hint)
    return questions

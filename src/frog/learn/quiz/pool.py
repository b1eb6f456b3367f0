"""A lab's questions: labs/labN/quiz.toml (docs/learn/exercises.md)."""

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
"""Relative tolerance."""


class _Strict(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Rejects unknown fields, so that a typo in a name is an error."""


class Choice(_Strict, kw_only=True, frozen=True):
    text: Text
    right: bool = False
    belief: Text | None = None
    """The misconception behind a wrong choice; every wrong choice has one."""


class NumberBelief(_Strict, kw_only=True, frozen=True):
    """A wrong number and the misconception that leads to it."""

    value: float
    belief: Text
    tolerance: Tolerance = 0.01


class Question(_Strict, kw_only=True, frozen=True):
    """One question: with one right choice, with several, or with a numeric `answer` within `tolerance`."""

    id: Word
    kind: Literal["single", "several", "number"]
    text: Text
    read: Text
    """The section to read again: a page and one of its headings."""
    why: Text
    """The explanation shown after the answer, right or wrong."""
    first: bool = False
    """True for a question that decides if a learner is ready."""
    choices: tuple[Choice, ...] = ()
    answer: float | None = None
    unit: Literal["B", "s", "steps", "ranks", "%", ""] = ""
    tolerance: Tolerance = 0.01
    beliefs: tuple[NumberBelief, ...] = ()

    def problems(self) -> Iterator[str]:
        """Yield errors in the question itself."""
        num_right = sum(choice.right for choice in self.choices)
        if self.kind == "number":
            yield from self._problems_of_number()
        elif self.answer is not None or self.beliefs:
            yield f"kind {self.kind} needs choices, and has neither answer nor beliefs"
        elif self.kind == "single" and num_right != 1:
            yield f"{num_right} right choices, expected 1"
        elif not num_right > 0 or len(self.choices) < 2:
            yield f"{num_right} right choices of {len(self.choices)}"
        for choice in self.choices:
            if choice.right == (choice.belief is not None):
                yield f"{choice.text!r}: a wrong choice needs a belief, a right one must not have one"

    def _problems_of_number(self) -> Iterator[str]:
        if self.answer is None or self.choices:
            yield "kind number needs an answer, and has no choices"
            return
        for belief in self.beliefs:
            if is_near(belief.value, self.answer, self.tolerance + belief.tolerance):
                yield f"the wrong value {belief.value:g} is within the tolerances of the answer, {self.answer:g}"


class Pool(_Strict, kw_only=True, frozen=True):
    KIND: ClassVar[str] = "a lab's questions"

    questions: tuple[Question, ...]


def is_near(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) <= tolerance * abs(expected)


def read_pools(labs: Path = LABS) -> dict[int, tuple[Question, ...]]:
    """Read the questions of each lab that has any.

    Raises:  UsageError that names the file and the place or question.
    """
    paths = sorted(labs.glob("lab*/quiz.toml"))
    return {int(path.parent.name.removeprefix("lab")): _read_pool(path) for path in paths}


def _read_pool(path: Path) -> tuple[Question, ...]:
    hint = "see docs/learn/exercises.md"
    questions = convert(read_toml(path, UsageError, hint), Pool, str(path), hint, UsageError).questions
    for question in questions:
        for problem in question.problems():
            raise UsageError(f"{path}: question {question.id}: {problem}", hint)
    return questions

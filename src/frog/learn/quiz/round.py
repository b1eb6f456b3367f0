"""Draw a round of questions, parse answers and judge them."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as with_fields

from frog.core.errors import UsageError
from frog.learn.quantity import format_quantity, parse_quantity
from frog.learn.quiz.pool import Question, is_near

ENOUGH = 2
"""Right answers among the first three that show that a learner is ready."""


@dataclass(frozen=True)
class Judged:
    """A judged answer."""

    right: bool
    beliefs: tuple[str, ...] = ()
    """The misconceptions behind the answer."""
    missed: tuple[str, ...] = ()
    """Right choices that the answer lacks."""


@dataclass(frozen=True)
class Round:
    """The questions in order, and the answers so far."""

    questions: tuple[Question, ...]
    answers: tuple[Judged, ...] = field(default=())

    def with_answer(self, judged: Judged) -> Round:
        return replace(self, answers=(*self.answers, judged))

    @property
    def num_right(self) -> int:
        return sum(judged.right for judged in self.answers)

    @property
    def num_first(self) -> int:
        return sum(question.first for question in self.questions)

    @property
    def ready(self) -> bool | None:
        """True if the learner is ready; None if the round has no such questions or not all of them are answered."""
        if not self.num_first or len(self.answers) < self.num_first:
            return None
        return sum(judged.right for judged in self.answers[: self.num_first]) >= ENOUGH


def draw_round(pools: Mapping[int, Sequence[Question]], lab: int | None, seed: int, count: int) -> Round:
    """Draw up to `count` questions: from all labs, or from one lab with a third of them from earlier labs.

    Raises:  UsageError if the lab has no questions.
    """
    if lab is not None and lab not in pools:
        raise UsageError(f"lab {lab} has no questions", f"frog quiz with one of: {', '.join(map(str, pools))}")
    draw = random.Random(seed)
    first, own, earlier = _candidates(pools, lab)
    for questions in (own, earlier):
        draw.shuffle(questions)
    num_earlier = min(count // 3, len(earlier))
    others = own[: max(0, count - len(first) - num_earlier)] + earlier[:num_earlier]
    draw.shuffle(others)
    return Round(tuple(_shuffled(question, draw) for question in (first + others)[:count]))


def _candidates(
    pools: Mapping[int, Sequence[Question]], lab: int | None
) -> tuple[list[Question], list[Question], list[Question]]:
    """Return the opening questions, the lab's own, and those of earlier labs."""
    first = [question for question in pools.get(0, ()) if question.first] if lab in (None, 0) else []
    others = {number: [question for question in pool if not question.first] for number, pool in pools.items()}
    own = [question for number, pool in others.items() if lab in (None, number) for question in pool]
    earlier = [question for number, pool in others.items() if lab and number < lab for question in pool]
    return first, own, earlier


def _shuffled(question: Question, draw: random.Random) -> Question:
    choices = list(question.choices)
    draw.shuffle(choices)
    return with_fields(question, choices=tuple(choices))


def judge_answer(question: Question, text: str) -> Judged:
    """Judge a typed answer: letters of choices, a number with its unit, or `?`.

    Raises:  UsageError if the text is not a valid answer.
    """
    text = text.strip()
    if text == "?":
        return Judged(False)
    return _judge_number(question, text) if question.kind == "number" else _judge_choices(question, text)


def _judge_number(question: Question, text: str) -> Judged:
    assert question.answer is not None
    value = parse_quantity(text, question.unit)
    if is_near(value, question.answer, question.tolerance):
        return Judged(True)
    near = (belief.belief for belief in question.beliefs if is_near(value, belief.value, belief.tolerance))
    return Judged(False, tuple(near))


def _judge_choices(question: Question, text: str) -> Judged:
    letters = set(text.lower().replace(",", "").replace(" ", ""))
    known = dict(zip(string.ascii_lowercase, question.choices, strict=False))
    if not letters or not letters <= known.keys() or (question.kind == "single" and len(letters) > 1):
        what = "letters" if question.kind == "several" else "one letter"
        raise UsageError(f"{text!r}: expected {what} of {', '.join(known)}; or ? if you do not know")
    taken = [known[letter] for letter in sorted(letters)]
    beliefs = tuple(choice.belief for choice in taken if choice.belief is not None)
    missed = tuple(choice.text for choice in question.choices if choice.right and choice not in taken)
    return Judged(not beliefs and not missed, beliefs, missed)


def right_answer(question: Question) -> str:
    if question.answer is not None:
        return format_quantity(question.answer, question.unit)
    lettered = zip(string.ascii_lowercase, question.choices, strict=False)
    return "; ".join(f"{letter}, {choice.text}" for letter, choice in lettered if choice.right)

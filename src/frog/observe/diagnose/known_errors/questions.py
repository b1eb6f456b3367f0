"""Questions about programs that do not fail, found by the words that people use."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from frog.core.schema import Typed, convert, read_toml
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.known_errors.table.known import Text

PAGE = "docs/troubleshooting.md"
_FILE = Path(__file__).with_suffix(".toml")
_HINT = "correct the question"
MOST_LINES = 40
"""Most lines of a text that is a description; a longer one is a log."""
_MOST_QUOTED = 160


class Question(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A question without an error message."""

    id: Text
    title: Text
    """The heading of its entry in docs/troubleshooting.md."""
    words: Annotated[tuple[tuple[Text, ...], ...], msgspec.Meta(min_length=1)]
    """Groups of words; a text asks the question if it has a word of each group."""
    cause: Text
    advice: Text

    def num_words(self, text: str) -> int:
        """Return the number of its words in a text in lower case; 0 unless each group has one."""
        counts = [sum(word in text for word in group) for group in self.words]
        return sum(counts) if all(counts) else 0


class _Questions(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    question: tuple[Question, ...]


@cache
def questions() -> tuple[Question, ...]:
    """Return all questions. The first call reads them."""
    return convert(read_toml(_FILE, hint=_HINT), _Questions, str(_FILE), _HINT).question


def asked(text: str) -> Question | None:
    """Return the question that a description asks, the one with the most of its words."""
    lowered = f" {' '.join(text.lower().split())} "
    best = max(questions(), key=lambda question: question.num_words(lowered))
    return best if best.num_words(lowered) else None


def question_answer(question: Question, text: str) -> Diagnosis:
    """Return the usual cause of what a text describes."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return Diagnosis(
        question.id,
        f"no error, but a description: {question.title}",
        certain=False,
        outcome="unknown",
        evidence=(first[:_MOST_QUOTED] + ("…" if len(first) > _MOST_QUOTED else ""),),
        advice=f"{question.advice}\n{PAGE}, {question.title}",
        known_error=question.id,
        meaning=question.cause,
        confidence="The text has no error message: this is the usual cause of what it describes, not a proof.",
    )

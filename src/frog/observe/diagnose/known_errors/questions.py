"""Questions about programs that do not fail, found by the words that people use."""

from __future__ import annotations

import re
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
_OUTPUT = re.compile(
    r"^\s*(?:[\[{}|│$#+<]|\d{4}-\d\d|\d\d:\d\d|(?:INFO|WARN|DEBUG|ERROR|NAME)\b|[\w.-]{1,60}(?::\d+)?[:=](?:\s|$))"
    r"|\d\d:\d\d:\d\d|\S {3,}\S+ {3,}"
)
"""A line that a program printed, or a setting: its words ask no question."""
_LEAST_WORDS, _LEAST_SHARE = 4, 0.75
_SHORT = 5
"""Length of a word up to which only its usual endings may follow: "stand" is not in "standard"."""


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
        counts = [sum(_pattern(word).search(text) is not None for word in group) for group in self.words]
        return sum(counts) if all(counts) else 0


class _Questions(Typed, kw_only=True, frozen=True, forbid_unknown_fields=True):
    question: tuple[Question, ...]


@cache
def questions() -> tuple[Question, ...]:
    """Return all questions. The first call reads them."""
    return convert(read_toml(_FILE, hint=_HINT), _Questions, str(_FILE), _HINT).question


@cache
def _pattern(word: str) -> re.Pattern[str]:
    word = word.strip()
    ending = r"(?:s|es|d|ed|er|n|ing)?\b" if len(word) <= _SHORT else ""
    return re.compile(rf"\b{re.escape(word)}{ending}")


def asked(text: str) -> Question | None:
    """Return the question that a paragraph of a description asks, the one with the most of its words."""
    scores = [(question.num_words(each), question) for each in _paragraphs(text) for question in questions()]
    num_words, best = max(scores, key=lambda pair: pair[0], default=(0, None))
    return best if num_words else None


def _paragraphs(text: str) -> list[str]:
    """Return the paragraphs of sentences in lower case, without lines that a program printed."""
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if _is_sentence(line):
            paragraphs[-1].append(line.strip())
        elif paragraphs[-1]:
            paragraphs.append([])
    return [" ".join(paragraph).lower() for paragraph in paragraphs if paragraph]


def _is_sentence(line: str) -> bool:
    if _OUTPUT.search(line):
        return False
    letters = sum(character.isalpha() or character == " " for character in line)
    return len(re.findall(r"[^\W\d_]{2,}", line)) >= _LEAST_WORDS and letters >= _LEAST_SHARE * len(line)


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

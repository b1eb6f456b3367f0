"""Ask the questions of a round in a terminal, or read the answers from a pipe, one per line."""

from __future__ import annotations

import string
import textwrap

from frog.core.errors import UsageError
from frog.core.schema import shortened
from frog.learn.quiz.pool import Question
from frog.learn.quiz.round import Judged, Round, judge_answer, right_answer
from frog.learn.typed import read_answers

_WIDTH = 80


def take_round(taken: Round) -> Round:
    """Ask until the round ends, the learner quits (q, Ctrl-C, end of input), or turns out not to be ready."""
    for number, question in enumerate(taken.questions, 1):
        _show(question, f"{number} of {len(taken.questions)}")
        judged = _answer(question)
        if judged is None:
            break
        taken = taken.with_answer(judged)
        _explain(question, judged)
        if number == taken.num_first:
            _say_whether_ready(taken)
            if not taken.ready:
                break
    return taken


def _show(question: Question, place: str) -> None:
    print(f"\n{place}")
    _wrapped("", question.text)
    for letter, choice in zip(string.ascii_lowercase, question.choices, strict=False):
        _wrapped(f"  {letter}  ", choice.text)


def _answer(question: Question) -> Judged | None:
    """Ask until the answer is valid. Return None if the learner quits."""
    for text in read_answers(f"{_asks_for(question)}> "):
        try:
            return judge_answer(question, text)
        except UsageError as problem:
            print(shortened(str(problem), 400))
    return None


def _asks_for(question: Question) -> str:
    if question.kind == "number":
        return f"a number, in {question.unit} or with another unit " if question.unit else "a number "
    return "a letter " if question.kind == "single" else "one letter or several "


def _explain(question: Question, judged: Judged) -> None:
    if judged.right:
        _wrapped("right: ", question.why)
        return
    print("wrong.")
    for belief in judged.beliefs:
        _wrapped("  a possible misconception behind it: ", belief)
    _wrapped("  the right answer: ", right_answer(question))
    _wrapped("  why: ", question.why)
    print(f"  read again: {question.read}")


def _say_whether_ready(taken: Round) -> None:
    score = f"\n{taken.num_right} of {taken.num_first}: "
    if taken.ready:
        print(f"{score}you are ready.")
    else:
        print(f"{score}read the crash courses in docs/labs/lab0.md again, then: frog quiz 0")


def _wrapped(begin: str, text: str) -> None:
    """Print `begin`, then a text wrapped with a hanging indent."""
    for line in text.splitlines() or [""]:
        print(textwrap.fill(line, _WIDTH, initial_indent=begin, subsequent_indent=" " * min(len(begin), 12)))
        begin = " " * min(len(begin), 12)

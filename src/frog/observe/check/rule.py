"""A rule that holds for every correct program, and what breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from frog.observe.check.comparison import NotObservable
from frog.observe.check.rank_records import Place

Sure = Literal["certain", "likely", "possible"]
"""certain: no correct program leaves these records. likely: few do. possible: many do, look whether you meant it."""


@dataclass(frozen=True)
class Broken:
    """What breaks a rule."""

    finding: str
    """One sentence: what, since which step, on which ranks, which parameter."""
    sure: Sure
    advice: str
    step: int | None = None
    ranks: tuple[int, ...] = ()
    line: Place | None = None
    """The line of the user's program."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule, and the function that looks for what breaks it."""

    name: str
    """Its code in `frog check --json`, and in the table of docs/observe/check.md."""
    says: str
    """What holds: "replicas have equal weights after each step"."""
    look: Callable[[Any], Broken | None]
    """Takes what is compared (`Comparison`, or `Against`), returns what breaks the rule first; raises NotObservable."""


@dataclass(frozen=True)
class Answer:
    """What became of a rule: broken, held, or not observable and why."""

    rule: Rule
    broken: Broken | None = None
    why_not: str = ""

    @property
    def is_alarm(self) -> bool:
        """True if the rule is broken, certainly or likely."""
        return self.broken is not None and self.broken.sure != "possible"

    @property
    def held(self) -> bool:
        """True if the rule was checked and is not broken."""
        return self.broken is None and not self.why_not


def apply_rules(rules: Iterable[Rule], case: Any) -> list[Answer]:
    """Return what became of each rule on what is compared, in their order."""
    answers: list[Answer] = []
    for rule in rules:
        try:
            answers.append(Answer(rule, broken=rule.look(case)))
        except NotObservable as error:
            answers.append(Answer(rule, why_not=str(error)))
    return answers

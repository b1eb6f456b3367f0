"""The decks as data: each slide's headline, class, words, figures, commands and speaker notes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SLIDES = Path(__file__).parents[3] / "tools" / "slides"
MINUTES = {"crash-courses": 15, "session-a": 80, "session-b": 80, "session-c": 80, "session-d": 80, "session-e": 80}
"""Minutes of content. A session has 90 minutes; the other 10 are for questions and a break."""
SESSIONS = ("session-a", "session-b", "session-c", "session-d", "session-e")

_NOTE = re.compile(r"<!--\n(.*?)-->", re.DOTALL)
_CLASS = re.compile(r"<!-- _class: ([\w ]+) -->")
_SETTING = re.compile(r"<!-- _\w+: [\w ]+ -->")
_FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Slide:
    """The source of one slide."""

    deck: str
    number: int
    text: str

    @property
    def notes(self) -> list[str]:
        return _NOTE.findall(self.text)

    @property
    def minutes(self) -> int:
        found = re.match(r"(\d+) min\n", self.notes[0]) if self.notes else None
        return int(found[1]) if found else 0

    @property
    def classes(self) -> list[str]:
        found = _CLASS.search(self.text)
        return found[1].split() if found else []

    @property
    def asks(self) -> bool:
        return "ask" in self.classes

    @property
    def answers(self) -> bool:
        return "answer" in self.classes

    @property
    def is_extra(self) -> bool:
        """True if the slide follows the session's end and has no minutes."""
        return "extra" in self.classes

    @property
    def choices(self) -> list[str]:
        return re.findall(r"^\d\. (.*)", self.shown, re.MULTILINE)

    @property
    def headlines(self) -> list[str]:
        return re.findall(r"^#+ (.*)$", _FENCE.sub("", self.text), re.MULTILINE)

    @property
    def figures(self) -> list[tuple[str, str]]:
        """Alternative text and path of each figure."""
        return re.findall(r"!\[(.*?)\]\((.*?)\)", self.text)

    @property
    def shown(self) -> str:
        """Visible text of the slide."""
        return _SETTING.sub("", _NOTE.sub("", self.text)).strip()

    @property
    def commands(self) -> list[str]:
        """Commands to type: those of console blocks, and Frog's commands in the text of slide and notes."""
        blocks = [line for kind, lines in _FENCE.findall(self.text) if kind == "console" for line in lines.splitlines()]
        typed = [line.removeprefix("$ ") for line in blocks if line.startswith("$ ")]
        return typed + re.findall(r"`((?:frog|make) [^`]+ [^`]+|frog learn)`", _FENCE.sub("", self.text))


def read_deck(name: str) -> list[Slide]:
    """Return the slides of a deck, in order."""
    _, _, body = (SLIDES / f"{name}.md").read_text().partition("\n---\n")
    return [Slide(name, number, text) for number, text in enumerate(body.split("\n---\n"), 1)]


ALL = [slide for name in MINUTES for slide in read_deck(name)]

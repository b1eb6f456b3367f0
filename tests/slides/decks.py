"""The decks of slides/ as data: each slide's headline, class, words, figures, commands and speaker notes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SLIDES = Path(__file__).parents[2] / "slides"
MINUTES = {"crash-courses": 15, "session-a": 90, "session-b": 90, "session-c": 90}

_NOTE = re.compile(r"<!--\n(.*?)-->", re.DOTALL)
_CLASS = re.compile(r"<!-- _class: (\w+) -->")
_FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


@dataclass(frozen=True)
class Slide:
    """One slide of a deck, as it is written."""

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
    def asks(self) -> bool:
        found = _CLASS.search(self.text)
        return found is not None and found[1] == "ask"

    @property
    def headlines(self) -> list[str]:
        return re.findall(r"^#+ (.*)$", _FENCE.sub("", self.text), re.MULTILINE)

    @property
    def figures(self) -> list[tuple[str, str]]:
        """Alternative text and path of each."""
        return re.findall(r"!\[(.*?)\]\((.*?)\)", self.text)

    @property
    def shown(self) -> str:
        """What stands on the slide."""
        return _CLASS.sub("", _NOTE.sub("", self.text)).strip()

    @property
    def commands(self) -> list[str]:
        """The lines to type: of console blocks, and of frog's own among the words of slide and notes."""
        blocks = [line for kind, lines in _FENCE.findall(self.text) if kind == "console" for line in lines.splitlines()]
        typed = [line.removeprefix("$ ") for line in blocks if line.startswith("$ ")]
        return typed + re.findall(r"`((?:frog|make) [^`]+ [^`]+|frog learn)`", _FENCE.sub("", self.text))


def read_deck(name: str) -> list[Slide]:
    """The slides of a deck, in order."""
    _, _, body = (SLIDES / f"{name}.md").read_text().partition("\n---\n")
    return [Slide(name, number, text) for number, text in enumerate(body.split("\n---\n"), 1)]


ALL = [slide for name in MINUTES for slide in read_deck(name)]

"""The roadmap of each session, drawn from its deck: the parts that the notes name, and the minutes of their slides."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from draw import Figure

SLIDES = Path(__file__).resolve().parents[1]
_COLORS = ("data", "r0", "r2", "r5", "r3", "r4", "r6", "r7", "quiet")
_OWN = {"Demo": "reduce", "Lab": "optimize"}


def parts(deck: str) -> list[tuple[str, int]]:
    """Return the parts of a deck, in order, with their minutes. A slide whose notes say `Part: name` begins one."""
    found: list[tuple[str, int]] = []
    for slide in (SLIDES / f"{deck}.md").read_text().split("\n---\n")[1:]:
        begins = re.search(r"^Part: (.*)$", slide, re.MULTILINE)
        lasts = re.search(r"^(\d+) min$", slide, re.MULTILINE)
        if begins:
            found.append((begins[1], 0))
        if lasts:
            name, minutes = found[-1]
            found[-1] = (name, minutes + int(lasts[1]))
    return found


def _roadmap(deck: str) -> Figure:
    figure = Figure()
    rows = parts(deck)
    total = sum(minutes for _, minutes in rows)
    left, unit, height = 560, 600 / total, 430 / len(rows)
    for minute in range(0, total + 1, 20):
        x = left + minute * unit
        figure.line([(x, 0), (x, 440)], "grid", 2)
        figure.text(x, 474, str(minute), "quiet", "end" if minute == total else "middle", 26)
    begin = 0
    for i, (name, minutes) in enumerate(rows):
        y = i * height + 6
        color = _OWN.get(name.partition(":")[0], _COLORS[i % len(_COLORS)])
        figure.text(0, y + height / 2 + 4, name, size=28, style="bold" if name.partition(":")[0] in _OWN else "")
        figure.text(530, y + height / 2 + 4, str(minutes), "quiet", "end", 28)
        figure.rect(left + begin * unit, y, minutes * unit - 2, height - 12, color)
        begin += minutes
    figure.text(530, 474, "minutes", "quiet", "end", 26)
    figure.text(0, 514, f"{total} minutes of content, and 10 for questions and a break", "quiet", size=26)
    return figure


def _drawer(letter: str) -> Callable[[], Figure]:
    def draw() -> Figure:
        return _roadmap(f"session-{letter}")

    draw.__doc__ = f"The parts of session {letter.upper()} and their minutes."
    return draw


FIGURES = {f"roadmap_{letter}": _drawer(letter) for letter in "abcde"}

"""Terminal text: wrapped to the width, coloured where supported. Colour never carries meaning on its own."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

from frog.core.terminal import printable, shows_colour

_COLUMNS = (40, 100)
"""Minimum and maximum width: longer lines are hard to read."""

_CODES = {"good": "32", "bad": "31", "strong": "1", "quiet": "2"}


@dataclass(frozen=True)
class Style:
    """Width and colour of the output."""

    columns: int = 80
    colour: bool = False

    def paint(self, text: str, *names: str) -> str:
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def wrap(self, text: str, indent: int = 2, first: str = "") -> list[str]:
        """Wrap a text that begins with `first`; indent its other lines to the same column."""
        margin = " " * indent
        lines: list[str] = []
        for paragraph in text.splitlines() or [""]:
            lines += textwrap.wrap(
                printable(paragraph.expandtabs(4)),
                self.columns,
                initial_indent=margin + (" " * len(first) if lines else first),
                subsequent_indent=margin + " " * len(first),
                break_on_hyphens=False,
            )
        return lines

    @staticmethod
    def cut(text: str, room: int) -> str:
        """Return the text, shortened with three dots if it is longer than `room`."""
        return text if len(text) <= room else f"{text[: room - 3]}..."

    def spread(self, left: str, right: str) -> str:
        """Place two texts at the two ends of a line, or only the left one if they do not fit."""
        space = self.columns - len(left) - len(right)
        return left + " " * space + right if right and space >= 2 else left

    def bar(self, done: int, of: int, width: int = 20) -> str:
        full = done * width // of if of else 0
        return f"[{'#' * full}{'-' * (width - full)}] {done}/{of}"


def style_of_output() -> Style:
    """Return the style for standard output: its width; no colour in a file or pipe, or if NO_COLOR is set."""
    columns = shutil.get_terminal_size().columns
    return Style(max(_COLUMNS[0], min(columns, _COLUMNS[1])), shows_colour())

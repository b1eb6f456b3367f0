"""Text for a terminal: wrapped to its width, with colour where there is any. Colour alone never says anything."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass

from frog.core.printable import printable
from frog.core.wrapping import shows_colour

_COLUMNS = (40, 100)
"""At least, and at most: longer lines are hard to read."""

_CODES = {"good": "32", "bad": "31", "strong": "1", "quiet": "2"}


@dataclass(frozen=True)
class Style:
    """How text is to be shown."""

    columns: int = 80
    colour: bool = False

    def paint(self, text: str, *names: str) -> str:
        if not self.colour or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def wrap(self, text: str, indent: int = 2, first: str = "") -> list[str]:
        """Lines of a text; `first` stands before it, and its further lines are indented as far."""
        margin = " " * indent
        found: list[str] = []
        for paragraph in text.splitlines() or [""]:
            found += textwrap.wrap(
                printable(paragraph.expandtabs(4)),
                self.columns,
                initial_indent=margin + (" " * len(first) if found else first),
                subsequent_indent=margin + " " * len(first),
                break_on_hyphens=False,
            )
        return found

    @staticmethod
    def cut(text: str, room: int) -> str:
        """The text, or as much of its beginning as there is room for, and three dots."""
        return text if len(text) <= room else f"{text[: room - 3]}..."

    def apart(self, left: str, right: str) -> str:
        """Two texts at the two ends of a line, or the left alone where there is no room."""
        space = self.columns - len(left) - len(right)
        return left + " " * space + right if right and space >= 2 else left

    def bar(self, done: int, of: int, width: int = 20) -> str:
        full = done * width // of if of else 0
        return f"[{'#' * full}{'-' * (width - full)}] {done}/{of}"


def style_of_output() -> Style:
    """As standard output is: its width; no colour in a file or pipe, nor where NO_COLOR is set."""
    columns = shutil.get_terminal_size().columns
    return Style(max(_COLUMNS[0], min(columns, _COLUMNS[1])), shows_colour())

"""Rich consoles, which draw tables and bars: their text is made printable, and is not parsed as markup by default."""

from __future__ import annotations

import re
import sys
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.segment import Segment

from frog.core.env import variable
from frog.core.terminal import beneath, encodable, printable_lines

_PADDING = re.compile(" +(?=\n)")


def console(**options: Any) -> Console:
    """Return a console on standard output. A test checks that no other code creates one.

    Output to a pipe or file has no padding; with NO_COLOR a terminal gets no styles.
    """
    file: Any = beneath(sys.stdout)
    settings = {"file": _Stream(file), "markup": False, "highlight": False, "emoji": False}
    if variable("NO_COLOR"):
        settings["color_system"] = None
    made = Console(**{**settings, **options})
    made.push_render_hook(_Cleaning())
    return made


class _Stream:
    """A text stream that escapes what its encoding lacks, and outside a terminal drops the padding of tables."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        shown = text if self._file.isatty() else _PADDING.sub("", text)
        self._file.write(encodable(shown, self._file, "backslashreplace"))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Cleaning(RenderHook):
    """A hook that filters everything a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(renderable) for renderable in renderables]


class _Cleaned:
    """A renderable whose text is made printable."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._renderable, options):
            text = segment.text if segment.control else printable_lines(segment.text)
            yield Segment(text, segment.style, segment.control)

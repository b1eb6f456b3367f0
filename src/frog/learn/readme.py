"""Format an exercise's README.md for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

from frog.core.terminal import printable, wrapped
from frog.learn.text import Style

_LEAD = re.compile(r"\*\*(.+?)\*\*")
_ITEM = re.compile(r"([-*]|\d+\.) ")
_CODE = re.compile(r"(`[^`]*`)")
_MARKS = re.compile(r"\*\*(.+?)\*\*|(?<![\w*])\*(\S[^*]*?)\*(?![\w*])|\[([^]]+)\]\([^)]*\)")
"""Bold, emphasis and links; their text is kept."""


def readme_lines(text: str, style: Style) -> list[str]:
    """Return the lines of the page below its title: wrapped paragraphs and list items, unchanged code."""
    lines: list[str] = []
    paragraph: list[str] = []
    is_fenced = False
    for line in [*text.splitlines(), ""]:
        is_fence = line.startswith("```")
        is_code = is_fenced or (line.startswith("    ") and not paragraph)
        if is_fence or is_code or not line.strip() or line.startswith(("#", "|")) or _ITEM.match(line):
            lines += _paragraph(paragraph, style)
            paragraph = []
        if is_fence:
            is_fenced = not is_fenced
        elif is_code:
            lines += wrapped(f"  {printable(line if is_fenced else line[4:])}", style.columns)
        elif line.startswith("|"):
            lines += _row(line, style)
        elif line.startswith("#"):
            lines += [] if line.startswith("# ") else [style.paint(_plain(line.lstrip("# ")), "strong")]
        elif line.strip():
            paragraph.append(line.strip())
        elif lines and lines[-1]:
            lines.append("")
    return lines[:-1] if lines and not lines[-1] else lines


def _paragraph(lines: list[str], style: Style) -> Iterator[str]:
    """Wrap a paragraph or a list item. A bold beginning is highlighted if it fits on the first line."""
    if not lines:
        return
    text = " ".join(lines)
    mark = _ITEM.match(text)
    sign = mark[0] if mark else ""
    first, *more = style.wrap(_plain(text.removeprefix(sign)), indent=0, first=sign)
    lead = _LEAD.match(text)
    shown = _plain(lead[0]) if lead else ""
    if shown and first.startswith(shown):
        first = style.paint(shown, "strong") + first[len(shown) :]
    yield from (first, *more)


def _row(line: str, style: Style) -> list[str]:
    """Format a table row; omit the separator below the header."""
    cells = [_plain(cell.strip()) for cell in line.strip().strip("|").split("|")]
    if all(re.fullmatch(":?-+:?", cell) for cell in cells):
        return []
    return wrapped("  " + "  |  ".join(cells), style.columns, hang=4)


def _plain(text: str) -> str:
    """Remove Markdown's marks, except those of code."""
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else _MARKS.sub(_text_of, part) for part in parts)


def _text_of(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None)

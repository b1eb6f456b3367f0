"""Finish a page of the generator: set the text of its copy buttons, fit its tables to phones, and add the player."""

from __future__ import annotations

import html
import re

_CONSOLE = re.compile(r'(<div class="[^"]*\bhighlight\b[^"]*")(>(?:(?!</pre>).)*?<code>)((?:(?!</code>).)*)', re.DOTALL)
_TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_HEAD = re.compile(r"<th(?: [^>]*)?>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>\n(<td.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td((?: [^>]*)?)>(.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]+>")

_MOVING = re.compile(r'<img [^>]*src="[^"]*pictures/moving/')

_PHONE_CHARS = 42
"""Characters of table text that fit in a line on a screen 400 pixels wide."""
_COLUMN_CHARS = 22
"""Width in characters below which a column of prose breaks at nearly every word."""


def finish_page(page: str, up: str = "") -> str:
    """Return a page's HTML with copyable console blocks, labelled tables, and the player of pictures that move.

    up: the path from the page to the site's root.
    """
    page = _TABLE.sub(_fitting_table, _CONSOLE.sub(_copyable_block, page))
    if not _MOVING.search(page):
        return page
    return page.replace("</body>", f'<script src="{up}assets/pictures.js"></script></body>')


def commands_of(block: str) -> str:
    """Return the commands of a console block, without prompts and output. A backslash continues a command."""
    found, continues = [], False
    for line in block.splitlines():
        if continues or line.startswith("$ "):
            found.append(line if continues else line.removeprefix("$ "))
            continues = line.endswith("\\")
    return "\n".join(found)


def _copyable_block(block: re.Match[str]) -> str:
    text = _text(block[3])
    commands = commands_of(text)
    if not commands:
        return block[0]
    copied = html.escape(commands).replace("\n", "&#10;")
    wraps = " data-wrap" if commands.count("\n") == text.strip().count("\n") else ""
    return f'{block[1]} data-copy="{copied}"{wraps}{block[2]}{block[3]}'


def _fitting_table(table: re.Match[str]) -> str:
    """Return a table whose cells name their columns, marked with the table's form on a phone."""
    heads = [_text(head) for head in _HEAD.findall(table[1])]
    rows = [[_text(cell) for _, cell in _CELL.findall(row)] for row in _ROW.findall(table[1])]

    def labelled(row: re.Match[str]) -> str:
        names = iter(heads)
        return _CELL.sub(
            lambda cell: f'<td{cell[1]} data-label="{html.escape(next(names, ""))}">{cell[2]}</td>', row[0]
        )

    kind = phone_layout([heads, *rows])
    return f'<table data-phone="{kind}">{_ROW.sub(labelled, table[1])}</table>'


def phone_layout(rows: list[list[str]]) -> str:
    """Return a table's form on a phone: "fit" unchanged, "stack" each row as a block, "scroll" in a box."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=False)]
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in zip(*rows, strict=False)]
    needed = sum(max(word, min(width, _COLUMN_CHARS)) for word, width in zip(words, widths, strict=True))
    if needed + 2 * len(widths) <= _PHONE_CHARS:
        return "fit"
    return "stack" if max(widths, default=0) > _COLUMN_CHARS else "scroll"


def _text(markup: str) -> str:
    return html.unescape(_TAG.sub("", markup))

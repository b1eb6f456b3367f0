"""Words of a shell text as written, and their contents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

_EXPANSION = re.compile(r"\$(?:\{[!#]?([A-Za-z_]\w*)|([A-Za-z_]\w*)|(\$))")
_QUOTED = re.compile(r"['\"\\]")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Word:
    """A word as written, with its quotes, and the line where it begins."""

    raw: str
    line: int

    @cached_property
    def text(self) -> str:
        """The word without its quotes."""
        return unquote(self.raw)

    @property
    def base(self) -> str:
        """The word without quotes and directories."""
        return self.text.rpartition("/")[2]

    @property
    def last_line(self) -> int:
        return self.line + self.raw.count("\n")

    def line_of(self, name: str) -> int:
        """Return the line where this word first reads a variable."""
        match = re.search(rf"\$\{{?{name}\b", self.raw)
        return self.line + (self.raw.count("\n", 0, match.start()) if match else 0)

    def expansions(self) -> set[str]:
        """Return the variables that the shell expands in this word: not those in single quotes or after a backslash."""
        return {next(filter(None, match.groups())) for match in _EXPANSION.finditer(live_text(self.raw))}


@dataclass(frozen=True)
class Assignment:
    """`NAME=value`, alone or after export; `raw` is the value as written."""

    name: str
    raw: str
    line: int
    exported: bool = False
    items: tuple[Word, ...] | None = None
    """The words of `NAME=(a list)`."""
    adds: bool = False
    """True for `NAME+=value`."""
    conditional: bool = False
    """True if it is in a branch, a loop or a function that might not run."""

    @cached_property
    def word(self) -> Word:
        return Word(self.raw, self.line)


def read_assignment(word: Word, exported: bool = False, conditional: bool = False) -> Assignment | None:
    """Return the word as an assignment, or None."""
    match = _ASSIGNMENT.fullmatch(word.raw)
    return (
        Assignment(match[1], match[3], word.line, exported, adds=bool(match[2]), conditional=conditional)
        if match
        else None
    )


def unquote(raw: str) -> str:
    """A word without its quotes; `$` in double quotes stays as it is, `\\$` becomes `$`."""
    if not _QUOTED.search(raw):
        return raw
    out, place = [], 0
    while place < len(raw):
        char = raw[place]
        if char == "'":
            end = raw.find("'", place + 1)
            end = len(raw) if end < 0 else end
            out.append(raw[place + 1 : end])
            place = end + 1
        elif char == '"':
            end = _end_of_double(raw, place)
            out.append(re.sub(r'\\([$"\\`])', r"\1", raw[place + 1 : end - 1]).replace("\\\n", ""))
            place = end
        elif char == "\\":
            out.append("" if raw[place + 1 : place + 2] == "\n" else raw[place + 1 : place + 2])
            place += 2
        else:
            out.append(char)
            place += 1
    return "".join(out)


def live_text(raw: str) -> str:
    """Return `raw` with `''` in place of what the shell takes literally: single quotes and escaped characters."""
    if "'" not in raw and "\\" not in raw:
        return raw
    live, place, in_double = [], 0, False
    while place < len(raw):
        char = raw[place]
        if char == "\\":
            live.append("''")
            place += 2
        elif char == "'" and not in_double:
            live.append("''")
            end = raw.find("'", place + 1)
            place = len(raw) if end < 0 else end + 1
        else:
            in_double ^= char == '"'
            live.append(char)
            place += 1
    return "".join(live)


def _end_of_double(raw: str, place: int) -> int:
    """Return the index after the double quote that closes the one at `place`, skipping nested substitutions."""
    place, depth = place + 1, 0
    while place < len(raw):
        char = raw[place]
        if char == "\\":
            place += 2
            continue
        if raw.startswith(("$(", "${"), place):
            depth += 1
            place += 2
            continue
        if depth and char in ")}":
            depth -= 1
        elif char == '"' and not depth:
            return place + 1
        place += 1
    return len(raw) + 1


def open_quote(text: str) -> int | None:
    """Return the line of a quote that is never closed.

    The shell pairs a forgotten quote with the first one of the next string, and so on to the last, which stays open.
    The line is that of the string that, closed at its line's end, leaves the fewest lines in quotes. A quote at the end
    of its line opens a text of several lines on purpose.
    """
    strings = _quotes(text)
    if not strings or strings[-1][1] is not None:
        return None
    best, fewest = strings[-1][0], (True, len(text))
    for start, end in strings:
        line_end = text.find("\n", start) % (len(text) + 1)
        if end is not None and line_end >= end:
            continue
        closed = _quotes(text[:line_end] + text[start] + text[line_end:])
        lines = sum(text.count("\n", start, end) for start, end in closed if end is not None)
        doubt = (line_end == start + 1, lines)
        if closed[-1][1] is not None and doubt < fewest:
            best, fewest = start, doubt
    return text.count("\n", 0, best) + 1


def _quotes(text: str) -> list[tuple[int, int | None]]:
    """Return where each quoted string starts and ends; the last one may have no end."""
    place, strings, ends = 0, list[tuple[int, int | None]](), []
    while place < len(text):
        char = text[place]
        if char == "\\":
            place += 2
        elif char == "#" and (place == 0 or text[place - 1] in " \t\n;"):
            place = text.find("\n", place) % (len(text) + 1)
        elif match := re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1(?!<)").match(text, place):
            ends.append(match[2])
            place = match.end()
        elif char == "\n" and ends:
            match = re.compile(rf"^\s*{ends.pop(0)}$", re.MULTILINE).search(text, place)
            place = match.end() if match else len(text)
        elif char in "'\"":
            start = place
            place = (text.find("'", place + 1) + 1) or len(text) + 1 if char == "'" else _end_of_double(text, place)
            strings.append((start, place if place <= len(text) else None))
        else:
            place += 1
    return strings

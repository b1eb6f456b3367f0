"""A job file's shell part, cut into commands and words, each with its line. It runs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_OPERATORS = ("&&", "||", ";;", "|&", "&", ";", "|", "(", ")", "\n")
_REDIRECT = re.compile(r"(?:\d*(?:<<<|<<-|<<|<>|>>|>\||>&|<&|>|<)|&>>|&>)")
_KEYWORDS = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"}
_ENDINGS = {"fi", "done", "}", "esac"}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_EXPANSION = re.compile(r"\$(?:\{[!#]?([A-Za-z_]\w*)|([A-Za-z_]\w*)|(\$))")


@dataclass(frozen=True)
class Word:
    """A word as it is written, quotes and all, and the line where it begins."""

    raw: str
    line: int

    @property
    def text(self) -> str:
        """Without its quotes."""
        return unquote(self.raw)

    @property
    def last_line(self) -> int:
        return self.line + self.raw.count("\n")

    def line_of(self, name: str) -> int:
        """The line where a variable is first read in this word."""
        match = re.search(rf"\$\{{?{name}\b", self.raw)
        return self.line + (self.raw.count("\n", 0, match.start()) if match else 0)

    def expansions(self) -> set[str]:
        """Variables that the shell which reads this word puts in: those in single quotes or behind a backslash stay."""
        return expansions(self.raw)


@dataclass(frozen=True)
class Assignment:
    """`NAME=value`, alone or behind export; `raw` is the value as written."""

    name: str
    raw: str
    line: int
    exported: bool


@dataclass(frozen=True)
class Command:
    """A simple command: its words after keywords and assignments, and what ended it."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    end: str
    line: int
    last_line: int

    @property
    def name(self) -> str:
        """Its program, without the folders before it."""
        return self.words[0].text.rpartition("/")[2] if self.words else ""

    @property
    def begins_function(self) -> bool:
        """Whether this is the head of `name() { ...`."""
        return self.end == "(" and len(self.words) == 1 and self.words[0].last_line == self.last_line


@dataclass
class Shell:
    """All commands of a text, and the line of a quote that is never closed."""

    commands: list[Command] = field(default_factory=list)
    unclosed: int | None = None


def unquote(raw: str) -> str:
    """A word without its quotes; `$` in double quotes stays as it is, `\\$` becomes `$`."""
    out, place = [], 0
    while place < len(raw):
        char = raw[place]
        if char == "'":
            end = raw.find("'", place + 1)
            end = len(raw) if end < 0 else end
            out.append(raw[place + 1 : end])
            place = end + 1
        elif char == '"':
            end = _skip_double(raw, place)
            out.append(re.sub(r'\\([$"\\`])', r"\1", raw[place + 1 : end - 1]).replace("\\\n", ""))
            place = end
        elif char == "\\":
            out.append("" if raw[place + 1 : place + 2] == "\n" else raw[place + 1 : place + 2])
            place += 2
        else:
            out.append(char)
            place += 1
    return "".join(out)


def expansions(raw: str) -> set[str]:
    """Names of the variables that are expanded where `raw` is read; `$` stands for the shell's pid."""
    live, place = [], 0
    in_double = False
    while place < len(raw):
        char = raw[place]
        if char == "\\":
            place += 2
        elif char == "'" and not in_double:
            end = raw.find("'", place + 1)
            place = len(raw) if end < 0 else end + 1
        else:
            in_double ^= char == '"'
            live.append(char)
            place += 1
    return {next(filter(None, match.groups())) for match in _EXPANSION.finditer("".join(live))}


def parse(text: str, first_line: int = 1) -> Shell:
    """The commands of a shell text, whose first line has the number `first_line`."""
    shell = Shell()
    words: list[Word] = []
    heredocs: list[str] = []
    place, line = 0, first_line
    while place < len(text):
        char = text[place]
        if text.startswith("\\\n", place):
            place, line = place + 2, line + 1
        elif char in " \t\r":
            place += 1
        elif char == "#":
            end = text.find("\n", place)
            place = len(text) if end < 0 else end
        elif match := _REDIRECT.match(text, place):
            place = match.end()
            while text[place : place + 1] in (" ", "\t"):
                place += 1
            end = _skip_word(text, place, shell, line)
            if match[0].endswith(("<<", "<<-")):
                heredocs.append(unquote(text[place:end]))
            line += text.count("\n", place, end)
            place = end
        elif operator := _operator(text, place, words):
            _end_command(shell, words, operator, line)
            words = []
            place += len(operator)
            if operator == "\n":
                line += 1
                while heredocs:
                    place, line = _skip_heredoc(text, place, line, heredocs.pop(0))
        else:
            end = _skip_word(text, place, shell, line)
            if end == place:  # an operator inside [[ ]]
                end += 2 if text[place : place + 2] in _OPERATORS else 1
            words.append(Word(text[place:end].removesuffix("\\\n"), line))
            line += text.count("\n", place, end)
            place = end
    _end_command(shell, words, "\n", line)
    return shell


def _operator(text: str, place: int, words: list[Word]) -> str | None:
    """The operator that stands there; inside `[[ ]]` there is none but the end of the line."""
    test = [word.raw for word in words if word.raw in ("[[", "]]")][-1:] == ["[["]
    return next((item for item in _OPERATORS if text.startswith(item, place) and not (test and item != "\n")), None)


def _end_command(shell: Shell, words: list[Word], end: str, line: int) -> None:
    while words and words[0].raw in _KEYWORDS:
        words = words[1:]
    if not words or (words[0].raw in _ENDINGS and len(words) == 1):
        if end == "&" and shell.commands:  # `{ ...; } &`
            last = shell.commands[-1]
            shell.commands[-1] = Command(last.words, last.assignments, "&", last.line, last.last_line)
        return
    first = words[0].line
    assignments = []
    while words and (match := _ASSIGNMENT.fullmatch(words[0].raw)):
        assignments.append(Assignment(match[1], match[2], words[0].line, False))
        words = words[1:]
    if words and words[0].raw in ("export", "declare", "typeset", "local", "readonly"):
        exported = words[0].raw == "export" or "-x" in {word.raw for word in words}
        for word in words[1:]:
            if match := _ASSIGNMENT.fullmatch(word.raw):
                assignments.append(Assignment(match[1], match[2], word.line, exported))
    shell.commands.append(Command(tuple(words), tuple(assignments), end, first, line))


def _skip_heredoc(text: str, place: int, line: int, mark: str) -> tuple[int, int]:
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        found = text[place:end].strip() == mark
        place, line = end + 1, line + 1
        if found:
            break
    return place, line


def _skip_word(text: str, place: int, shell: Shell, line: int) -> int:
    """Where the word that begins at `place` ends."""
    start = place
    while place < len(text):
        char = text[place]
        before = place
        if char == "(" and text[max(start, place - 1) : place] == "=":  # NAME=(a list)
            place = _skip_nested(text, place, "(", ")")
        elif char in " \t\r\n;&|()<>":
            break
        else:
            place = _skip_piece(text, place)
        if place > len(text):
            if shell.unclosed is None:
                shell.unclosed = line + text.count("\n", start, before)
            return len(text)
    return place


def _skip_piece(text: str, place: int) -> int:
    """Behind one character or one quoted piece; beyond the end of the text if a quote is not closed."""
    char = text[place]
    if char == "\\":
        return min(place + 2, len(text))
    if char == "'":
        end = text.find("'", place + 1)
        return len(text) + 1 if end < 0 else end + 1
    if char == '"':
        return _skip_double(text, place)
    if char == "`":
        end = text.find("`", place + 1)
        return len(text) + 1 if end < 0 else end + 1
    if text.startswith("$(", place):
        return _skip_nested(text, place + 1, "(", ")")
    if text.startswith("${", place):
        return _skip_nested(text, place + 1, "{", "}")
    return place + 1


def _skip_double(text: str, place: int) -> int:
    place += 1
    while place < len(text):
        if text[place] == '"':
            return place + 1
        place = _skip_piece(text, place) if text[place] in "\\`$" else place + 1
    return len(text) + 1


def _skip_nested(text: str, place: int, opening: str, closing: str) -> int:
    depth = 0
    while place < len(text):
        char = text[place]
        if char == opening:
            depth, place = depth + 1, place + 1
        elif char == closing:
            depth, place = depth - 1, place + 1
            if depth == 0:
                return place
        else:
            place = _skip_piece(text, place)
    return len(text) + 1

"""Gaps of a template, and job files that stand inside of other files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from frog.jobfile.values import GAP
from frog.shell.script import Command
from frog.shell.words import Word

_MOST_INNER = 10
_ANYWHERE = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|%\(\w+\)[sd]|(?<![\w.])@[A-Z]\w*@(?!\w)|(?<=[=-])@[a-z]\w*@(?!\w)|\b(?:CHANGE_?ME|REPLACE_?(?:ME|THIS)|PLACEHOLDER)\b"
    r"|\[\[[A-Z_]+\]\]|\b__[A-Z][A-Z_]+__\b|(?<!\$)@\{(?!(?:u|upstream|push)\})[A-Za-z_]\w*\}"
)
_NAMED = re.compile(r"(?<![<>&\w$(])<(?!EOF|<)[A-Za-z][\w .:/|+-]*(?<![ ])>(?![>&])")
_SAYS = re.compile(r"\s*(echo|printf)\b|.*(:\?|\b[Uu]sage:|\bUSAGE:)")
"""A line that tells people how to call the file: `sbatch job.sh <config>`."""
_BRACED = re.compile(r"(?<![$\w\\{])\{[A-Za-z_][\w .]*\}")
_SQUARE = re.compile(r"(?<![$\w])\[[A-Z][A-Z_ ]*\]|(?<==)\[[a-z][a-z_ -]*\](?=\s|$)")
_CAPITALS = re.compile(r"(?<!export)[= ](?:[A-Z]+_)*(?:NAME|NUM|YOUR|PATH|DIR)(?:_[A-Z]+)*(?=\s|$)")
_YOUR = re.compile(r"[=/ ]your[-_]\w+")
_CROSSES = re.compile(
    r"(?:(?<=account)|(?<=partition)|(?<=qos)|(?<= -[Apq]))[= ][Xx]+(?=\s|$)|[= ](?:X{3,}|x{3,})(?=\s|$)"
)
_VARIABLE = re.compile(r"\$\{\w+\}")


def fill_gaps(text: str, first_line: int) -> tuple[str, dict[int, str]]:
    """`text` with every gap replaced by a mark, and the gaps by line."""
    found: dict[int, str] = {}
    lines = text.split("\n")
    last = max((place for place, line in enumerate(lines) if line.startswith("#SBATCH")), default=-1)
    inserted = any(_inserts(line, text) for line in lines[: last + 1])
    for place, line in enumerate(lines):
        head = line.startswith("#SBATCH")
        if line.lstrip().startswith("#") and not head:
            continue
        patterns = [_ANYWHERE] if _SAYS.match(line) else [_ANYWHERE, _NAMED]
        head_patterns = (
            [_BRACED, _SQUARE, _CAPITALS, _YOUR, _CROSSES, *([_VARIABLE] if inserted else [])] if head else []
        )
        for pattern in (*patterns, *head_patterns):
            for match in pattern.finditer(line):
                found.setdefault(place + first_line, match[0].strip("=/ "))
            line = pattern.sub(lambda match: match[0][: match[0].startswith(("=", " ", "/"))] + GAP, line)
        if not head and (re.fullmatch(rf"[\s{GAP}]*{GAP}[\s{GAP}]*", line) or (inserted and _inserts(line, text))):
            found.setdefault(place + first_line, line.strip())
            line = f"# {GAP}"  # what will stand there may be directives as well as commands
        lines[place] = line
    return ("\n".join(lines), found) if found else (text, {})


def _inserts(line: str, text: str) -> bool:
    """Whether the line is a variable alone that the file never sets: a program fills it in."""
    match = re.fullmatch(r"\s*\$\{(\w+)\}\s*", line)
    return match is not None and not re.search(rf"\b{match[1]}=", text)


@dataclass(frozen=True)
class InnerJob:
    """A job file that another file writes and hands in."""

    text: str
    first_line: int


def inner_jobs(commands: list[tuple[str, int, bool]]) -> list[InnerJob]:
    """The job files among here-documents: text, line, and whether the outer shell leaves it as it stands."""
    found = []
    for text, line, quoted in commands:
        if re.search(r"^#SBATCH\b", text, re.MULTILINE):
            found.append(InnerJob(text if quoted else _put_in_outside(text), line))
    return found[:_MOST_INNER]


def _put_in_outside(text: str) -> str:
    """What sbatch gets: the outer shell has put its variables in, of which nothing is known here."""
    text = re.sub(
        r"(?<!\\)\$\((?:[^()]|\([^()]*\))*\)|(?<!\\)\$\{[^}]*\}|(?<!\\)\$[A-Za-z_]\w*|(?<!\\)\$[\d@*#?!]", GAP, text
    )
    text = re.sub(r"(?<!\\)`[^`\n]*`", GAP, text)
    return re.sub(r"\\([$`\\])", r"\1", text)


def echoed_texts(commands: Iterable[Command]) -> list[tuple[str, int, bool]]:
    """What `echo` writes into each file, put together as if it stood in a here-document that is not quoted."""
    files: dict[str, list[list[Command]]] = {}
    for command in commands:
        if command.name == "echo" and command.writes is not None:
            texts = files.setdefault(command.writes.raw, [])
            if not texts or command.text.startswith("echo #!"):
                texts.append([])
            texts[-1].append(command)
    certain = [text for texts in files.values() for text in texts if not any(_is_uncertain(item) for item in text)]
    return [(_echoed(text), text[0].line, False) for text in certain]


def _is_uncertain(command: Command) -> bool:
    """Whether it may not run, or breaks its line itself."""
    return command.way.maybe or command.text.startswith(("echo -e", "echo -n"))


def _echoed(commands: list[Command]) -> str:
    """One text, each line as far below the first as in the outer file: a finding is then told where it stands."""
    lines: list[str] = []
    for command in commands:
        lines += [""] * (command.line - commands[0].line - len(lines))
        lines += " ".join(map(_as_in_heredoc, command.words[1:])).split("\n")
    return "\n".join(lines)


def _as_in_heredoc(word: Word) -> str:
    quote = word.raw[:1]
    if quote == "'":
        return re.sub(r"([$`\\])", r"\\\1", word.text)
    return word.raw[1:-1].replace('\\"', '"') if quote == '"' else word.raw

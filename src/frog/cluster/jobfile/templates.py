"""Placeholders of a template, and job files nested in other files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from frog.cluster.jobfile.shell_script import Command
from frog.cluster.jobfile.shell_words import Word
from frog.cluster.jobfile.variable_values import GAP

_MOST_INNER = 10
_ANYWHERE = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|%\(\w+\)[sd]|(?<![\w.])@[A-Z]\w*@(?!\w)|(?<=[=-])@[a-z]\w*@(?!\w)|\b(?:CHANGE_?ME|REPLACE_?(?:ME|THIS)|PLACEHOLDER)\b"
    r"|\[\[[A-Z_]+\]\]|\b__[A-Z][A-Z_]+__\b|(?<!\$)@\{(?!(?:u|upstream|push)\})[A-Za-z_]\w*\}"
)
_NAMED = re.compile(r"(?<![<>&\w$(])<(?!EOF|<)[A-Za-z][\w .:/|+-]*(?<![ ])>(?![>&])")
_SAYS = re.compile(r"\s*(echo|printf)\b|.*(:\?|\b[Uu]sage:|\bUSAGE:)")
"""A line that shows how to call the file: `sbatch job.sh <config>`."""
_BRACED = re.compile(r"(?<![$\w\\{])\{[A-Za-z_][\w .]*\}")
_SQUARE = re.compile(r"(?<![$\w])\[[A-Z][A-Z_ ]*\]|(?<==)\[[a-z][a-z_ -]*\](?=\s|$)")
_CAPITALS = re.compile(r"(?<!export)[= ](?:[A-Z]+_)*(?:NAME|NUM|YOUR|PATH|DIR)(?:_[A-Z]+)*(?=\s|$)")
_YOUR = re.compile(r"[=/ ]your[-_]\w+")
_CROSSES = re.compile(
    r"(?:(?<=account)|(?<=partition)|(?<=qos)|(?<= -[Apq]))[= ][Xx]+(?=\s|$)|[= ](?:X{3,}|x{3,})(?=\s|$)"
)
_VARIABLE = re.compile(r"\$\{\w+\}")


def fill_gaps(text: str, first_line: int) -> tuple[str, dict[int, str]]:
    """Replace every placeholder in `text` by a mark; return the text and the placeholders by line."""
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
            line = f"# {GAP}"  # the placeholder may become directives as well as commands
        lines[place] = line
    return ("\n".join(lines), found) if found else (text, {})


def _inserts(line: str, text: str) -> bool:
    """True if the line is a single variable that the file never sets: a program fills it in."""
    match = re.fullmatch(r"\s*\$\{(\w+)\}\s*", line)
    return match is not None and not re.search(rf"\b{match[1]}=", text)


@dataclass(frozen=True)
class InnerJob:
    """A job file that another file writes and submits."""

    text: str
    first_line: int


def inner_jobs(commands: list[tuple[str, int, bool]]) -> list[InnerJob]:
    """Return the job files in here-documents: text, line, and True if the outer shell does not expand it."""
    found = []
    for text, line, quoted in commands:
        if re.search(r"^#SBATCH\b", text, re.MULTILINE):
            found.append(InnerJob(text if quoted else _put_in_outside(text), line))
    return found[:_MOST_INNER]


def _put_in_outside(text: str) -> str:
    """Return the text that sbatch gets, with the outer shell's variables replaced by unknown values."""
    text = re.sub(
        r"(?<!\\)\$\((?:[^()]|\([^()]*\))*\)|(?<!\\)\$\{[^}]*\}|(?<!\\)\$[A-Za-z_]\w*|(?<!\\)\$[\d@*#?!]", GAP, text
    )
    text = re.sub(r"(?<!\\)`[^`\n]*`", GAP, text)
    return re.sub(r"\\([$`\\])", r"\1", text)


def echoed_texts(commands: Iterable[Command]) -> list[tuple[str, int, bool]]:
    """Return the text that `echo` commands write to each file, as if it came from an unquoted here-document."""
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
    """True if the command might not run, or breaks lines itself."""
    return command.way.maybe or command.text.startswith(("echo -e", "echo -n"))


def _echoed(commands: list[Command]) -> str:
    """Join lines at their distances in the outer file, so that findings name the right line."""
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

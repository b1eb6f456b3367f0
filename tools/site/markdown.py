"""Markdown generated from texts in the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_CODE = re.compile(r"(`+[^`]*`+)")
_NAMED = re.compile(r"^([A-Z][a-z]+):\s+(.*)$")


def prose(text: str) -> str:
    """Escape a text so that only code between backticks is markup."""
    parts = _CODE.split(text)
    return "".join(part if at % 2 else _escaped(part) for at, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([*\\[\]_])", r"\\\1", text).replace("<", "&lt;")


def cell(text: str) -> str:
    """Escape a text for a table cell."""
    return " ".join(text.split()).replace("|", r"\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *([cell(word) for word in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def fence(text: str, language: str = "text") -> str:
    """Return a code block that may itself contain backticks."""
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{ticks}{language}\n{text.rstrip()}\n{ticks}\n"


def docstring(text: str) -> str:
    """Format a docstring: paragraphs, its fields (Shapes, Comm, Raises) as a list, indented text as code."""
    return "\n\n".join(_paragraph(part) for part in re.split(r"\n\s*\n", text) if part.strip())


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return fence("\n".join(line[4:] for line in lines), "python")
    if not _NAMED.match(lines[0]):
        return prose(text)
    found: list[str] = []
    for line in lines:
        if named := _NAMED.match(line):
            found.append(f"- **{named[1]}:** {prose(named[2])}")
        else:
            found[-1] += " " + prose(line.strip())
    return "\n".join(found)


def language_of(path: Path) -> str:
    """Return the highlighter's name for the language of a file."""
    names = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".yml": "yaml", ".sbatch": "bash"}
    return "docker" if path.name == "Dockerfile" else names.get(path.suffix, "text")

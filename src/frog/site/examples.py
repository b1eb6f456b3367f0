"""Real runs that the site shows, if they were made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Examples:
    """Pages by their path, their titles, and the files that they show."""

    pages: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


def example_pages(folder: Path) -> Examples:
    return Examples({"examples/index.md": "# Real runs\n"}, {"Real runs": "examples/index.md"})

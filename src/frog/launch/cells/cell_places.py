"""Places in cells: each cell is a file of the world, and people read `cell 3, line 2`."""

from __future__ import annotations

import re
from pathlib import Path

CELL_FILE = re.compile(r"frog-world-[^/\s]*/cells/cell_(\d+)(?:_\d+)?\.py")
"""The path of a cell's file, without the folder of temporary files."""
_PLACE = re.compile(r"\S*frog-world-[^/\s]*/cells/cell_(\d+)(?:_\d+)?\.py:(\d+)(?: in <module>)?")


def cell_path(folder: Path, number: int) -> Path:
    """Return the file of a cell in a world's folder."""
    return folder / "cells" / f"cell_{number}.py"


def place_text(path: str, line: int) -> str:
    """Return a line of a cell as `cell 3, line 2`; of another file as `file.py:2`."""
    match = CELL_FILE.search(path)
    return f"cell {match[1]}, line {line}" if match else f"{path}:{line}"


def with_places(text: str) -> str:
    """Replace the paths of cells in a text."""
    return _PLACE.sub(lambda match: f"cell {match[1]}, line {match[2]}", text)

"""The conditions around a line of the user's program, from its source: does a test of the rank guard it?"""

from __future__ import annotations

import ast
import re
import warnings
from functools import lru_cache
from pathlib import Path

from frog.core.errors import FrogError
from frog.core.schema import read_bounded
from frog.runs.observed import CodeLine

_MOST_BYTES = 2 << 20
_RANK = re.compile(
    r"\b\w*(rank|is_main|is_master|master_process|main_process|is_first|is_last|is_chief|is_leader)\w*\b", re.IGNORECASE
)


def rank_branch(line: CodeLine | None) -> str | None:
    """Return `if rank == 0:` (line 12) if a test of the rank encloses a line of a program, else None.

    Reads the file as it is now.
    """
    if line is None or not line.file.endswith(".py"):
        return None
    found = None
    for test, start, first, last in _branches(line.file):
        if first <= line.line <= last:
            found = f"`{test}` in line {start}"
    return found


@lru_cache(maxsize=64)
def _branches(file: str) -> list[tuple[str, int, int, int]]:
    """Return the tests of the rank in a file: their text, line, and the first and last line that they guard."""
    try:
        text = read_bounded(Path(file), most_bytes=_MOST_BYTES).decode("utf-8", "replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, FrogError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            test = ast.get_source_segment(text, node.test) or ""
            if _RANK.search(test) and len(test) <= 200:
                for word, block in ((f"if {test}:", node.body), (f"if {test}: … else:", node.orelse)):
                    if block:
                        found.append((word, node.lineno, block[0].lineno, block[-1].end_lineno or block[-1].lineno))
    return sorted(found, key=lambda each: each[2])

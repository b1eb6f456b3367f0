"""The conditions around a line of the user's program, from its source: does a test of the rank guard it?"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath

from frog.core.errors import FrogError
from frog.core.runs.observed import CodeLine
from frog.core.schema import read_bounded
from frog.observe.diagnose.program.evidence import Call

_MOST_BYTES, _MOST_TEST = 2 << 20, 200
_RANK = re.compile(
    r"\b\w*(rank|is_main|is_master|master_process|main_process|is_first|is_last|is_chief|is_leader|process_zero|process_index)\w*\b",
    re.IGNORECASE,
)
_MAIN = re.compile(r"is_main|is_master|master_process|main_process|is_first|is_chief|is_leader|process_zero")


def rank_branch(line: CodeLine | None) -> str | None:
    """Return `if rank == 0:` (line 12) if a test of the rank encloses a line of a program, else None.

    Reads the current file, which may have changed since the program ran.
    """
    branch = _branch(line)
    return branch.text if branch is not None else None


def call_branch(call: Call, callers: Iterable[int], others: list[Call]) -> str | None:
    """Return the test of the rank that encloses a call, or a line that led to it.

    callers: the ranks that made it. others: all calls of the ranks that did not. A test around an outer line counts
    only if no call of theirs came from its block; if their records have no stacks, only if it names the one caller.
    """
    if (text := rank_branch(call.line)) is not None:
        return text
    came = [frame for other in others for frame in other.callers]
    for frame in call.callers:
        branch = _branch(frame)
        if branch is None or any(branch.encloses(each) for each in came):
            continue
        if came or branch.names(list(callers)):
            return f"{branch.text} of {PurePath(frame.file).name}"
    return None


@dataclass(frozen=True)
class _Branch:
    """A block that a test of the rank guards."""

    text: str
    file: str
    first: int
    last: int

    def names(self, ranks: list[int]) -> bool:
        """True if the test is `if rank == 3:` or `if is_main():` and these ranks are the one that it names."""
        if len(ranks) != 1 or "else:" in self.text or "not " in self.text:
            return False
        return f"== {ranks[0]}:" in self.text or (ranks == [0] and bool(_MAIN.search(self.text)))

    def encloses(self, line: CodeLine) -> bool:
        return line.file == self.file and self.first <= line.line <= self.last


def _branch(line: CodeLine | None) -> _Branch | None:
    """Return the innermost block around a line that a test of the rank guards."""
    if line is None or not line.file.endswith(".py"):
        return None
    found = None
    for test, start, first, last in _blocks(line.file).branches:
        if first <= line.line <= last:
            found = _Branch(f"`{test}` in line {start}", line.file, first, last)
    return found


def in_one_loop(one: CodeLine, other: CodeLine) -> bool:
    """True if a loop of a program encloses both lines. False if its source cannot be read."""
    if one.file != other.file or not one.file.endswith(".py"):
        return False
    return any(
        first <= min(one.line, other.line) and max(one.line, other.line) <= last
        for first, last in _blocks(one.file).loops
    )


@dataclass
class _Blocks:
    """The blocks of a file that matter here."""

    branches: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Tests of the rank: their text, their line, and the first and last line that they guard."""
    loops: list[tuple[int, int]] = field(default_factory=list)
    """The first and last line of each loop."""


@lru_cache(maxsize=64)
def _blocks(file: str) -> _Blocks:
    """Return the blocks of a file; none if it cannot be read."""
    found = _Blocks()
    try:
        text = read_bounded(Path(file), most_bytes=_MOST_BYTES).decode("utf-8", "replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, FrogError, SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            _add_tests(found, node, lines)
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            found.loops.append((node.lineno, node.end_lineno or node.lineno))
    found.branches.sort(key=lambda each: each[2])
    return found


def _add_tests(found: _Blocks, node: ast.If, lines: list[str]) -> None:
    if node.test.lineno != node.test.end_lineno:
        return
    test = (
        lines[node.test.lineno - 1].encode()[node.test.col_offset : node.test.end_col_offset].decode(errors="replace")
    )
    if not _RANK.search(test) or len(test) > _MOST_TEST:
        return
    for words, block in ((f"if {test}:", node.body), (f"if {test}: … else:", node.orelse)):
        if block:
            found.branches.append((words, node.lineno, block[0].lineno, block[-1].end_lineno or block[-1].lineno))

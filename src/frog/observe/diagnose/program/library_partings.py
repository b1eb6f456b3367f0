"""Ranks that wait in different places of a library, called by one line of the program, such as `trainer.train()`.

The program's own lines are the same there, but the library's source shows where the ranks parted, and the program has
lines that the library decides by: flags that stop training, values that it reduces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import PurePath

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import blocks_around, function_around, parse_file, source_of
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.code_partings import Parting, parting_lines, parting_of
from frog.observe.diagnose.program.evidence import Evidence, RankEvidence, place

_FLAG = re.compile(r"should_\w+|stop_training")
"""Attributes with which a callback tells a trainer what to do."""
_LOGGED = re.compile(r"\.log(_dict)?\(")
_LOGS = re.compile(r"logger_connector[/\\]result\.py$")
"""Where Lightning reduces the values that the program logged."""
_MOST = 3


def library_words(left: RankEvidence, stayed: RankEvidence) -> tuple[str, str]:
    """Return the kind of block in which the ranks of one line parted in a library, and words about it; empty if none.

    left, stayed: in the words, the first has left the block in which the second is.
    """
    for odd, other in ((left, stayed), (stayed, left)):
        parting = _parting(other, odd)
        if parting is None:
            continue
        where, block = f" of {PurePath(parting.block.file).name}", parting.block
        if block.kind == "loop":
            return "loop", f"in {where[4:]}, rank {odd.rank} has left the loop {block}, in which rank {other.rank} is"
        return block.kind, f"only rank {other.rank} passed {block}{where}"
    lines = parting_lines(left.stack, stayed.stack)
    if lines is None or is_user_file(lines[0].file):
        return "", ""
    return "line", f"rank {left.rank} is at {place(lines[0])}, rank {stayed.rank} at {place(lines[1])}"


def _parting(one: RankEvidence, other: RankEvidence) -> Parting | None:
    """Return the block of the library that the first rank is in, and the second is past."""
    lines = parting_lines(one.stack, other.stack)
    if lines is None or is_user_file(lines[0].file):
        return None
    mine, others = (rank.stack[rank.stack.index(line) :] for rank, line in zip((one, other), lines, strict=True))
    return parting_of(mine, others, ())


def decided_by(evidence: Evidence, *ranks: RankEvidence) -> str:
    """Return the lines of the program by which a library decides what the ranks do, as words; empty without any."""
    files = user_files(evidence)
    words = [f"the program sets `{text}` at {place(line)}{_under(line)}" for text, line in _flags(files)]
    if any(_LOGS.search(frame.file) for rank in ranks for frame in rank.stack):
        words += [
            f"it reduces what the program logs at {place(line)}{_under(line)}" for line in lines_with(files, _LOGGED)
        ]
        words += ["all ranks must log the same names, as often"]
    return "".join(f"; {each}" for each in words[:_MOST])


def _under(line: CodeLine) -> str:
    tests = [block for block in blocks_around(line) if block.kind in ("if", "else", "except")]
    return f", under {tests[-1]}" if tests else ""


def _flags(files: Iterable[str]) -> list[tuple[str, CodeLine]]:
    """Return the flags of a trainer that the program sets: their text and line."""
    flags = []
    for file in files:
        parsed = parse_file(file)
        nodes = ast.walk(parsed[0]) if parsed is not None else ()
        for node in nodes:
            names = [each for each in getattr(node, "targets", ()) if isinstance(each, ast.Attribute)]
            if isinstance(node, ast.Assign) and any(_FLAG.fullmatch(name.attr) for name in names):
                flags.append((ast.unparse(node), _line_in(file, node.lineno)))
    return flags


def lines_with(files: Iterable[str], pattern: re.Pattern[str]) -> list[CodeLine]:
    """Return the lines of files with a pattern, except for comments."""
    return [
        _line_in(file, number)
        for file in files
        for number, text in enumerate(source_of(file).lines, 1)
        if pattern.search(text.partition("#")[0])
    ]


def _line_in(file: str, line: int) -> CodeLine:
    around = function_around(source_of(file), line)
    return CodeLine(file=file, line=line, function=around.name if around is not None else "")


def user_files(evidence: Evidence) -> list[str]:
    """Return the program's own files, as far as a rank was seen in them."""
    frames = [
        frame
        for rank in evidence.ranks.values()
        for frame in (
            *filter(None, [rank.line]),
            *rank.stack,
            *(frame for call in rank.calls for frame in call.callers),
        )
    ]
    return [
        file for file in dict.fromkeys(frame.file for frame in frames) if is_user_file(file) and file.endswith(".py")
    ]

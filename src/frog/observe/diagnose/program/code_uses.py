"""Calls that no test around them explains: the cause is where the program gives a function away, or which one it calls.

A hook, a callback or an object of a class that only some ranks create; a line that calls another function on each rank,
as through a dictionary; a line that calls a function several times, as `map` does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from frog.core.runs.observed import CodeLine
from frog.core.schema import shortened
from frog.observe.diagnose.program.assigned_values import ProgramFile
from frog.observe.diagnose.program.code_blocks import (
    RANK_TEST,
    Block,
    function_around,
    is_readable,
    parse_file,
    source_of,
    text_of,
)
from frog.observe.diagnose.program.code_partings import Guard, parting_lines, rank_block

_MOST_TEXT = 90
_CALLS_OFTEN = re.compile(r"\b(map\w*|starmap|filter|reduce|apply|accumulate)\(")
_Owner = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def used_under(stack: Sequence[CodeLine], others: Iterable[CodeLine]) -> Guard | None:
    """Return the test of the rank under which alone the program uses a function, or the class of a method, of a stack.

    stack: the lines that led to a call, innermost first. others: those of all calls of the other ranks, which never
    came to that function.
    """
    came = list(others)
    for frame in stack:
        owner = _owner_of(frame) if is_readable(frame) and frame.function != "<module>" else None
        if owner is None or any(each.file == frame.file and _holds(owner, each.line) for each in came):
            continue
        uses = _uses_of(frame.file, owner)
        if any(each.file == frame.file and each.line == node.lineno for each in stack for node in uses):
            continue  # the stack shows the call, and the tests around it
        blocks = [_rank_test_around(frame.file, node) for node in uses]
        known = [block for block in blocks if block is not None]
        if known and len(known) == len(blocks):
            return Guard(known[0], f"{known[0]}, the only one under which {owner.name} is used", is_use=True)
    return None


def one_of_classes(stack: Sequence[CodeLine]) -> str:
    """Return words about a call in a method that several classes of a file have; empty if it is in none.

    stack: the lines that led to the call, innermost first.
    """
    for frame in stack:
        owner = _owner_of(frame) if is_readable(frame) else None
        methods = [each.name for each in owner.body if isinstance(each, ast.FunctionDef)] if owner is not None else []
        if not isinstance(owner, ast.ClassDef) or frame.function not in methods or frame.function == "__init__":
            continue
        file = ProgramFile.of(frame.file)
        others = [file.class_at(each.lineno) for each in file.functions if each.name == frame.function]
        uses = _uses_of(frame.file, owner)
        if uses and any(name not in ("", owner.name) for name in others):
            text = text_of(CodeLine(file=frame.file, line=uses[0].lineno)).strip()
            return (
                f" of {owner.name}, one of the classes with a method {frame.function}: perhaps it has an object of "
                f"another one, see line {uses[0].lineno} (`{shortened(text, _MOST_TEXT)}`)"
            )
    return ""


def _owner_of(frame: CodeLine) -> _Owner | None:
    """Return the function of a line; of a method its class."""
    file = ProgramFile.of(frame.file)
    function, name = file.function_at(frame.line), file.class_at(frame.line)
    owner = file.classes.get(name)
    return owner if owner is not None and function in owner.body else function


def _uses_of(file: str, owner: _Owner) -> list[ast.expr]:
    """Return where a file names a function or a class, outside of itself."""
    parsed = parse_file(file)
    nodes = [node for node in ast.walk(parsed[0]) if isinstance(node, ast.expr)] if parsed is not None else []
    named = [
        node
        for node in nodes
        if (isinstance(node, ast.Name) and node.id == owner.name)
        or (isinstance(node, ast.Attribute) and node.attr == owner.name)
    ]
    return [node for node in named if not _holds(owner, node.lineno)]


def _rank_test_around(file: str, node: ast.expr) -> Block | None:
    """Return the test of the rank around an expression: of a branch, or of a condition in its own statement."""
    parsed = parse_file(file)
    for each in ast.walk(parsed[0]) if parsed is not None else ():
        sides = [each.body, each.orelse] if isinstance(each, ast.IfExp) else []
        if any(_is_same(node, part) for side in sides for part in ast.walk(side)) and isinstance(each, ast.IfExp):
            test = shortened(ast.unparse(each.test), _MOST_TEXT)
            if RANK_TEST.search(test):
                last = each.end_lineno or each.lineno
                return Block("if", f"… if {test} else …", each.lineno, file, each.lineno, last, tests_rank=True)
    around = function_around(source_of(file), node.lineno)
    return rank_block(CodeLine(file=file, line=node.lineno, function=around.name if around else "<module>"))


def _is_same(one: ast.expr, other: ast.AST) -> bool:
    return isinstance(other, ast.expr) and (one.lineno, one.col_offset) == (other.lineno, other.col_offset)


def _holds(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


# ---- one line that calls different functions, or one function several times ------------------------------------------


def differing_callees(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> tuple[CodeLine, str, str] | None:
    """Return the line from which two ranks came to different functions, with these; None if it names both, or none is.

    one, other: the lines that led to the calls, innermost first.
    """
    for line, mine, others in _common_lines(one, other):
        name, name_there = _name_at(mine), _name_at(others)
        if name != name_there:
            text = text_of(line) if is_readable(line) else ""
            is_named = all(re.search(rf"\b{re.escape(each.function)}\(", text) for each in (mine, others))
            distinct = mine.function == others.function or not is_named
            return (line, name, name_there) if text and distinct else None
    return None


def _common_lines(one: Sequence[CodeLine], other: Sequence[CodeLine]) -> Iterator[tuple[CodeLine, CodeLine, CodeLine]]:
    """Yield each line that both stacks have, from the outermost on, with the next line of each."""
    mine, others = list(reversed(one)), list(reversed(other))
    for (line, there), (inner, inner_there) in zip(
        zip(mine, others, strict=False), zip(mine[1:], others[1:], strict=False), strict=False
    ):
        if (line.file, line.line) != (there.file, there.line):
            return
        yield line, inner, inner_there


def _name_at(line: CodeLine) -> str:
    """Return the name of a line's function, that of a method with its class."""
    owner = _owner_of(line) if is_readable(line) else None
    return f"{owner.name}.{line.function}" if isinstance(owner, ast.ClassDef) else line.function


def repeats_in_a_line(
    one: Sequence[CodeLine], other: Sequence[CodeLine], last: Sequence[CodeLine]
) -> tuple[CodeLine, str] | None:
    """Return the line that called a function several times, and the text of it, if one rank is past it and one in it.

    one: the lines that led to the call of the rank that is in it. last: those of the last call that both made, from
    the same line.
    """
    lines = parting_lines(one, other)
    if lines is None or not is_readable(lines[0]) or lines[1].line <= lines[0].line:
        return None
    inner = list(one)[: list(one).index(lines[0]) + 1]
    if [(frame.file, frame.line) for frame in inner] != [(frame.file, frame.line) for frame in last[: len(inner)]]:
        return None
    callers = [frame for frame in inner if is_readable(frame) and _CALLS_OFTEN.search(text_of(frame))]
    line = next(iter(callers or inner[1:]), lines[0])
    return line, shortened(text_of(line).strip(), _MOST_TEXT)

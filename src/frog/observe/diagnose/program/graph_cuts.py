"""Statements under a test that cut the graph of gradients: they make a new tensor in place of a computed one.

A backward calls a collective only if the loss depends on it. A rank that took such a statement leaves it out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import called_name, is_readable, parse_file

_NAMES = """
zeros ones empty full zeros_like ones_like empty_like full_like new_zeros new_ones new_empty new_full tensor detach
"""
_NEW = frozenset(_NAMES.split())
_MOST, _MOST_TEXT = 2, 100


def graph_cuts(stack: Sequence[CodeLine]) -> str:
    """Return the statements in the files of a stack that may cut the graph, for people; empty without any."""
    files = dict.fromkeys(frame.file for frame in stack if is_readable(frame))
    cuts = [text for file in files for text in _cuts_of(file)]
    return " or ".join(cuts[:_MOST])


@lru_cache(maxsize=16)
def _cuts_of(file: str) -> tuple[str, ...]:
    parsed = parse_file(file)
    if parsed is None:
        return ()
    tests = [node for node in ast.walk(parsed[0]) if isinstance(node, ast.If)]
    try:
        return tuple(text for test in tests for text in _under(test))
    except RecursionError:  # a sum of thousands of terms
        return ()


def _under(test: ast.If) -> Iterator[str]:
    """Yield the statements right under a test, or its `else`, whose value is a new tensor."""
    for statement in (*test.body, *test.orelse):
        if not isinstance(statement, (ast.Return, ast.Assign)) or statement.value is None:
            continue
        if called_name(statement.value) in _NEW:
            text, head = ast.unparse(statement), f"if {ast.unparse(test.test)}:"
            if len(text) <= _MOST_TEXT and len(head) <= _MOST_TEXT:
                yield f"`{text}` under `{head}` in line {test.lineno}"

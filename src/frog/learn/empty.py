"""Detect functions that are still empty: a solution with one is unsolved, whatever the check found."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import msgspec

from frog.learn.grader.exercise import Exercise
from frog.learn.grader.verdict import Verdict


def unsolved_if_empty(verdict: Verdict, exercise: Exercise, files: Mapping[str, bytes]) -> Verdict:
    """Turn a rejection into `unsolved` if a function is empty: an empty function shows no misconception."""
    if verdict.status != "rejected":
        return verdict
    for name, line in _empty_functions(exercise, files):
        return msgspec.structs.replace(
            verdict,
            status="unsolved",
            misconception=None,
            observed=f"{name} is still empty: it changes nothing and returns None.",
            belief=None,
            question=None,
            drawing=None,
            where=f"{exercise.manifest.files[0]}:{line}",
        )
    return verdict


def _empty_functions(exercise: Exercise, files: Mapping[str, bytes]) -> Iterator[tuple[str, int]]:
    """Yield the functions to fill in whose bodies do nothing, each with its line."""
    try:
        statements = ast.parse(files[exercise.manifest.files[0]]).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in statements:
        if (
            isinstance(node, ast.FunctionDef)
            and node.name in exercise.manifest.functions
            and not any(map(_acts, node.body))
        ):
            yield node.name, node.lineno


def _acts(statement: ast.stmt) -> bool:
    """Return False for `pass`, `...`, a docstring, `return` and `return None`."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Return):
        return statement.value is not None and not (
            isinstance(statement.value, ast.Constant) and statement.value.value is None
        )
    return not isinstance(statement, ast.Pass)

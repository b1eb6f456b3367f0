"""A function that is still empty: whatever a check found, its author has not solved the exercise yet."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import msgspec

from frog.learn.grader.exercise import Exercise
from frog.learn.grader.verdict import Verdict


def unsolved_if_empty(verdict: Verdict, exercise: Exercise, files: Mapping[str, bytes]) -> Verdict:
    """Name the empty function of a rejected solution instead of a misconception, which nobody has shown."""
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
    """The functions to be filled in whose bodies do nothing, each with its line."""
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
    """False for `pass`, `...`, a docstring, `return` and `return None`."""
    if isinstance(statement, ast.Expr):
        return not isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Return):
        return statement.value is not None and not (
            isinstance(statement.value, ast.Constant) and statement.value.value is None
        )
    return not isinstance(statement, ast.Pass)

"""Rules for every exercise's check.py (docs/exercises.md), as far as its source shows them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from frog.learn.grader.exercise import Exercise, find_exercises

EXERCISES = find_exercises()


def functions(exercise: Exercise) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse((exercise.folder / "check.py").read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


def never_returns(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "NoReturn"


def ends_in_a_rejection(body: list[ast.stmt], others: set[str]) -> bool:
    """Return True if no path reaches the end of this block. `others`: functions that never return."""
    last = body[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and all(ends_in_a_rejection(part, others) for part in (last.body, last.orelse))
    if isinstance(last, ast.Raise):
        return True
    call = last.value if isinstance(last, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in ("reject", "reject_different")
    return isinstance(call.func, ast.Name) and call.func.id in others


def test_function_that_explains_a_difference_always_rejects() -> None:
    """A looser comparison at the end would pass a difference that a stricter one has found."""
    explaining, wrong = 0, []
    for exercise in EXERCISES:
        never = [function for function in functions(exercise) if never_returns(function)]
        others = {function.name for function in never}
        explaining += len(never)
        wrong += [f"{exercise.id}: {one.name}" for one in never if not ends_in_a_rejection(one.body, others)]
    assert explaining > 50
    assert wrong == []


def test_function_that_always_rejects_is_annotated_noreturn() -> None:
    early = [(exercise, function) for exercise in EXERCISES if exercise.lab < 2 for function in functions(exercise)]
    explaining = [(exercise, function) for exercise, function in early if function.name.startswith("explain")]
    assert explaining
    assert [f"{exercise.id}: {one.name}" for exercise, one in explaining if not never_returns(one)] == []


def test_block_with_a_path_to_its_end_is_detected() -> None:
    """Show that the first test can fail."""
    for source, ends in (
        ("grade.reject('a', 'b')", True),
        ("grade.compare(1, 2, 'a')", False),
        ("if x:\n    grade.reject('a', 'b')", False),
        ("if x:\n    grade.reject('a', 'b')\nelse:\n    explain(grade)", True),
    ):
        assert ends_in_a_rejection(ast.parse(source).body, {"explain"}) is ends

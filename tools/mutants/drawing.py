"""Mutants of Frog's files: every operator and number that cosmic-ray can change, and a random draw of them."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators import (
    binary_operator_replacement,
    boolean_replacer,
    break_continue,
    comparison_operator_replacement,
    number_replacer,
    unary_operator_replacement,
)

Position = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    """Relative to the root: `src/frog/plan/memory.py`."""
    operator: str
    occurrence: int
    """The operator's n-th place in the file."""
    line: int
    before: str
    """The line as it is."""
    after: str
    part: str
    """The function, class or name at the top of the file that contains it; "" for other statements."""


class ChangedNumber(number_replacer.NumberReplacer):  # type: ignore[misc]  # cosmic-ray has no types
    """Changes zero and small integers by one, and other numbers, for which that is too little, by a factor."""

    def mutate(self, node: Any, index: int) -> Any:
        value = ast.literal_eval(node.value)
        if value == 0 or (isinstance(value, int) and value < 100):
            return super().mutate(node, index)
        changed = value * 2 if index == 0 else value // 2 if isinstance(value, int) else value / 2
        return parso.python.tree.Number(str(changed), node.start_pos, node.prefix)


def _operators() -> dict[str, Any]:
    """Return the operators that change an operator or a constant, by name."""
    keywords = (
        *(boolean_replacer.ReplaceTrueWithFalse, boolean_replacer.ReplaceFalseWithTrue),
        *(boolean_replacer.ReplaceAndWithOr, boolean_replacer.ReplaceOrWithAnd),
        *(break_continue.ReplaceBreakWithContinue, break_continue.ReplaceContinueWithBreak),
    )
    others = (binary_operator_replacement, comparison_operator_replacement, unary_operator_replacement)
    classes = chain(keywords, [ChangedNumber], *(module.operators() for module in others))
    return {one.__name__: one() for one in classes if _is_fair(one.__name__)}


_KINDS = (
    *({"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}, {"RShift", "LShift", "BitOr", "BitAnd", "BitXor"}),
    *({"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE"}, {"Is", "IsNot"}, {"USub", "UAdd"}),
)


def _is_fair(name: str) -> bool:
    """True unless the operator becomes one of another kind, as `*` becomes `<<`: Python refuses most of these."""
    kinds = [{number for number, kind in enumerate(_KINDS) if word in kind} for word in name.split("_")[1:]]
    if "Delete" in name or not kinds:
        return True
    return "Invert" not in name and bool(set.intersection(*kinds))


OPERATORS = _operators()
_BINARY = {one.value for one in binary_operator_replacement.BinaryOperators}
_TYPES = {"number", "keyword", "comparison", "factor", "not_test"}


def draw_mutants(root: Path, room: str, count: int, seed: int, under: str = "") -> list[Mutant]:
    """Draw places of a room uniformly, each at most once, and for each place one of its changes.

    under: the beginning of the paths to draw from.
    """
    places = [
        (path, choices)
        for path in sorted((root / "src/frog" / room).rglob("*.py"))
        if path.relative_to(root).as_posix().startswith(under)
        for _, choices in sorted(find_places(path.read_text()).items())
    ]
    chance = random.Random(f"{seed} {room}")
    found = []
    for path, choices in chance.sample(places, min(count, len(places))):
        name, occurrence, line = chance.choice(choices)
        found.append(make_mutant(root, path.relative_to(root).as_posix(), name, occurrence, line))
    return found


def find_places(source: str) -> dict[Position, list[tuple[str, int, int]]]:
    """Return the operators and constants of a file by position, each with its changes: operator, occurrence, line."""
    excluded = list(_excluded(source))
    counts: Counter[str] = Counter()
    places: dict[Position, list[tuple[str, int, int]]] = {}
    for node in ast_nodes(get_ast(source)):
        if node.type not in _TYPES and (node.type != "operator" or node.value not in _BINARY):
            continue
        is_marker = node.parent.type in ("parameters", "lambdef")  # the star of `def f(*, x)`
        for name, operator in OPERATORS.items():
            for start, _ in operator.mutation_positions(node):
                if not is_marker and not any(first <= start < last for first, last in excluded):
                    places.setdefault(start, []).append((name, counts[name], start[0]))
                counts[name] += 1
    return places


def make_mutant(root: Path, path: str, operator: str, occurrence: int, line: int) -> Mutant:
    """Return a mutant with the text of its line before and after."""
    source = (root / path).read_text()
    before, after = source.splitlines()[line - 1], mutated(source, operator, occurrence).splitlines()[line - 1]
    return Mutant(path, operator, occurrence, line, before.strip(), after.strip(), part_at(source, line))


def mutated(source: str, operator: str, occurrence: int) -> str:
    """Return the source with the change."""
    changed = mutate_code(source, OPERATORS[operator], occurrence)
    assert changed is not None, (operator, occurrence)
    return str(changed)


def part_at(source: str, line: int) -> str:
    """Return the name of the definition or assignment at the top of a file that contains a line, as the graph does."""
    for statement in ast.parse(source).body:
        if statement.lineno <= line <= (statement.end_lineno or 0):
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                return statement.name
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            return names[0] if names else ""
    return ""


def _excluded(source: str) -> Iterator[tuple[Position, Position]]:
    """Yield what tests need not hold: annotations, unions of types, decorators, `frozen=True`, f-strings, `__repr__`.

    mypy checks the types and what is frozen; f-strings are texts for people. The arguments in `_UNSEEN` change no
    result of a right program.
    """
    lines = source.splitlines(keepends=True)

    def span(node: ast.expr | ast.stmt) -> tuple[Position, Position]:
        return _position(lines, node.lineno, node.col_offset), _position(
            lines, node.end_lineno or 0, node.end_col_offset or 0
        )

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            yield from (span(one) for one in (node.returns, *(one.annotation for one in arguments)) if one is not None)
            if node.name in ("__repr__", "__str__"):
                yield span(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from map(span, node.decorator_list)
        if isinstance(node, ast.ClassDef):
            yield from (span(keyword.value) for keyword in node.keywords)
        if isinstance(node, ast.Call):
            yield from (span(keyword.value) for keyword in node.keywords if keyword.arg in _UNSEEN)
        if isinstance(node, ast.AnnAssign):
            yield span(node.annotation)
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Assign) and _is_union(node.value)):
            yield span(node)


_UNSEEN = ("flush", "strict", "indent", "buffering")


def _is_union(value: ast.expr) -> bool:
    """True for a type such as `int | None`: names with capitals, or of Python's types, between bars."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.BitOr):
        return False
    right = value.right.value if isinstance(value.right, ast.Subscript) else value.right
    name = ast.unparse(right).rpartition(".")[2]
    return name in ("None", "str", "int", "float", "bool", "bytes", "list", "dict") or name[:1].isupper()


def _position(lines: list[str], line: int, offset: int) -> Position:
    """Return a position in characters; `ast` counts bytes."""
    return line, len(lines[line - 1].encode()[:offset].decode())

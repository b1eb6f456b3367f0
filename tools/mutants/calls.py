"""Which functions of Frog each test calls, in its own process or in one that it starts (`tracing/sitecustomize.py`).

A mutant meets the tests that call its function before those that only could.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tools.affected.project import Project
from tools.mutants.drawing import Mutant

Calls = dict[str, set[str]]
"""Tests by function, `src/frog/plan/memory.py:Memory.total`. A test file stands for what its fixtures call."""


def read_calls(folder: Path) -> Calls:
    """Return what all files of a folder, one for each room, say."""
    calls: Calls = defaultdict(set)
    for path in folder.glob("*.tsv"):
        for line in set(path.read_text().splitlines()):
            test, function = line.split("\t")
            calls[function].add(test)
    return calls


def callers_of(project: Project, source: str, mutant: Mutant, calls: Mapping[str, set[str]]) -> set[str]:
    """Return the tests and test files that call the changed function, or the functions that use a changed constant."""
    function = function_at(source, mutant.line)
    if function:
        return set(calls.get(f"{mutant.path}:{function}", ()))
    module = project.module_of[mutant.path]
    node = f"{module}:{mutant.part}"
    path_of = {module: path for path, module in project.module_of.items()}
    users = {user for user, before in project.graph.users_of([node]).items() if before == node}
    places = {f"{path_of[file]}:{part}" for user in (*users, node) for file, _, part in [user.partition(":")] if part}
    return {test for name, tests in calls.items() if name in places or _class_of(name) in places for test in tests}


def _class_of(function: str) -> str:
    return function.rpartition(".")[0]


def function_at(source: str, line: int) -> str:
    """Return the name of the outermost function around a line, with its classes, or "" for other statements."""
    names: list[str] = []
    body = ast.parse(source).body
    while True:
        around = [each for each in body if each.lineno <= line <= (each.end_lineno or 0)]
        if not around or not isinstance(around[0], ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return ""
        names.append(around[0].name)
        if not isinstance(around[0], ast.ClassDef):
            return ".".join(names) if line >= around[0].body[0].lineno else ""
        body = around[0].body

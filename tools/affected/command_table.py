"""The table of Frog's commands: which modules `cli.py` imports for each."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.affected.facts import IMPORTING, Facts, Part

CLI = "frog.cli"
_NAMES = "frog.core.commands"
"""The module that lists the commands; they may also be listed in `cli.py` itself."""


def read_commands(files: Mapping[str, Path], facts: Mapping[str, Facts]) -> dict[str, set[str]]:
    """Return each command with what its branch or its entry imports and names; nothing for a command in neither.

    The commands are the keys with an example next to them: `"plan": "frog plan config/llama3_8b.json"`. `cli.py` names
    a command's module either in a branch, `case "plan": from frog.plan...`, or in a table, `"plan": "frog.plan..."`.
    The branch of all other commands belongs to those that have none of their own.
    """
    trees = [ast.parse(files[name].read_bytes()) for name in (CLI, _NAMES) if name in files]
    parts = {name: part for place in (CLI, _NAMES) if place in facts for name, part in facts[place].parts.items()}
    nodes = [node for tree in trees for node in ast.walk(tree)]
    entries = [
        (key.value, value)
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    names = {name for name, value in entries if any(text.startswith(f"frog {name}") for text in _constants(value))}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, value in entries:
        found[name] |= _targets([ast.Expr(value)], parts)
    others: set[str] = set()
    for case in (node for node in nodes if isinstance(node, ast.match_case)):
        targets = _targets(case.body, parts)
        for name in _constants(case.pattern):
            found[name] |= targets
        if not _constants(case.pattern):
            others |= targets
    return {name: found[name] or others for name in sorted(names)}


def _constants(tree: ast.AST) -> list[str]:
    """Return the strings in a piece of code."""
    return [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _targets(body: Sequence[ast.stmt], parts: Mapping[str, Part]) -> set[str]:
    """Return what statements import or name as a string, also in the functions that they refer to."""
    found: set[str] = set()
    names: set[str] = set()
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("frog."):
            found.add(node.value.partition(":")[0])
        elif isinstance(node, ast.Name):
            names.add(node.id)
    waiting, seen = [name for name in names if name in parts], set()
    while waiting:
        name = waiting.pop()
        if name not in seen and name in parts and name != IMPORTING:
            seen.add(name)
            found |= set(parts[name].imports.values())
            waiting += parts[name].names - parts[name].imports.keys()
    return found

"""Keeps a rank's variables over a restart of its world: what can be pickled in one file, and the cells' definitions.

All variables go into one pickle, so that an optimizer still refers to its model's parameters afterwards. Functions and
classes of a cell are kept as source: the new process runs their definitions, and the imports, again.
"""

from __future__ import annotations

import ast
import io
import os
import random
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def definitions(source: str) -> str:
    """Return a cell with only its imports, functions and classes, each in its own line; empty if it has none."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return ""
    lines = source.splitlines()
    kept = [""] * len(lines)
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            decorators = getattr(statement, "decorator_list", [])
            first = min([statement.lineno, *(each.lineno for each in decorators)])
            assert statement.end_lineno is not None
            kept[first - 1 : statement.end_lineno] = lines[first - 1 : statement.end_lineno]
    return "\n".join(kept) if any(kept) else ""


def save(namespace: Mapping[str, Any], path: Path) -> list[str]:
    """Write the variables of a namespace to a file; return those that cannot be kept, each with the reason."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    for name, value in list(namespace.items()):
        if _is_defined_again(name, value):
            continue
        why = _why_not(value)
        if why:
            lost.append(f"{name} ({why})")
        else:
            kept[name] = value
    state = {"variables": kept, "torch_rng": torch.get_rng_state(), "random": random.getstate()}
    staging = path.with_suffix(".part")
    torch.save(state, staging)
    os.replace(staging, path)
    return lost


def _is_defined_again(name: str, value: Any) -> bool:
    if name.startswith("__") or isinstance(value, types.ModuleType):
        return True
    is_code = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return is_code and getattr(value, "__qualname__", "<") == getattr(value, "__name__", "") == name


def _why_not(value: Any) -> str:
    """Return why a value cannot be pickled; empty if it can."""
    if _is_group(value):
        return "a process group"
    try:
        torch.save(value, io.BytesIO())
    except Exception as error:
        return f"a {type(value).__name__}: {str(error).splitlines()[0][:80] if str(error) else type(error).__name__}"
    return ""


def _is_group(value: Any) -> bool:
    return any(each.__name__ in ("ProcessGroup", "DeviceMesh", "Store", "Work") for each in type(value).__mro__)


def groups_in(namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of the variables that are process groups or meshes."""
    return [name for name, value in list(namespace.items()) if not name.startswith("__") and _is_group(value)]


def load(namespace: dict[str, Any], path: Path, code: Sequence[tuple[str, str]]) -> list[str]:
    """Put saved variables and definitions into a namespace; return what could not be restored, with the reason.

    code: definitions, each with the file of its cell.
    """
    failed = _define(namespace, code)
    lost: list[str] = []
    if path.exists():
        try:
            state = torch.load(path, weights_only=False)
        except Exception as error:
            return [f"all variables ({type(error).__name__}: {error})"]
        namespace.update(state["variables"])
        torch.set_rng_state(state["torch_rng"])
        random.setstate(state["random"])
    for where, why in _define(namespace, failed, errors=lost):  # now their default values and decorators exist
        lost.append(f"definitions of {Path(where).stem} ({why.splitlines()[0][:80]})")
    return lost


def _define(
    namespace: dict[str, Any], code: Sequence[tuple[str, str]], errors: list[str] | None = None
) -> list[tuple[str, str]]:
    """Run definitions; return those that failed. errors: if given, what is returned has the error in place of code."""
    failed = []
    for where, source in code:
        try:
            exec(compile(source, where, "exec", dont_inherit=True), namespace)
        except Exception as error:
            failed.append((where, source if errors is None else f"{type(error).__name__}: {error}"))
    return failed

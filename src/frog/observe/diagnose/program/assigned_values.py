"""What a name in a program may stand for: by the assignments, parameters and functions of the program's own files.

A name that a file imports is followed into the file next to it, and a parameter to the calls in files that import its
function. Files of installed packages are not read. A tensor that a collective has made equal on all ranks is
not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from frog.core.errors import FrogError
from frog.core.schema import read_bounded
from frog.observe.diagnose.program.code_blocks import called_name, parse_file
from frog.observe.diagnose.program.code_lines import is_user_file

_MOST_LEVELS = 3
"""Folders above a file in which the modules that it imports, or that import it, may lie."""
_MOST_FILES, _MOST_BYTES = 60, 1 << 20
_MOST_NAMES = 4
"""Names after one another that are followed to the class of an object."""
_MAKES_EQUAL = (
    "all_reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast_object_list",
    "all_gather_object",
)
"""Collectives after which their first argument has the same value on all ranks."""
_EQUAL_FUNCTIONS = ("bool", "int", "float", "len", "any", "all", "torch")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Statement = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)
AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


class Value(NamedTuple):
    """An expression at a line of a file."""

    file: ProgramFile
    node: ast.expr
    line: int


@dataclass(eq=False)
class ProgramFile:
    """The assignments, functions and imports of a file of a program."""

    path: str
    functions: list[AnyFunction] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    assigned: dict[str, list[tuple[int, ast.expr]]] = field(default_factory=dict)
    """Lines and values, by the text of what is assigned; those of the items of a container also by its own text."""
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """By the last name of the function."""
    tests: dict[int, ast.expr] = field(default_factory=dict)
    """The test of each `if` and `while`, and what a `for` goes through, by line."""
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Files of the program and names in them, by the names under which this one knows them; an empty name: the file."""

    @staticmethod
    @lru_cache(maxsize=64)
    def of(path: str) -> ProgramFile:
        """Return what a file contains; nothing if it cannot be read."""
        found, parsed = ProgramFile(path), parse_file(path)
        for node in ast.walk(parsed[0]) if parsed is not None else ():
            if isinstance(node, _Function):
                found.functions.append(node)
            elif isinstance(node, ast.ClassDef):
                found.classes.setdefault(node.name, node)
            elif isinstance(node, ast.Call):
                found.calls.setdefault(called_name(node), []).append(node)
            elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
                found.tests.setdefault(node.lineno, node.test)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                found.tests.setdefault(node.lineno, node.iter)
                found._assign(node.target, node.iter, node.lineno)
            elif isinstance(node, _Statement) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name, value in _pairs(target, node.value):
                        found._assign(name, value, node.lineno)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found.imports |= _imported(path, node)
        return found

    def _assign(self, target: ast.expr, value: ast.expr, line: int) -> None:
        self.assigned.setdefault(ast.unparse(target), []).append((line, value))
        if isinstance(target, ast.Subscript):
            self.assigned.setdefault(ast.unparse(target.value), []).append((line, value))

    def function_at(self, line: int) -> AnyFunction | None:
        """Return the innermost function around a line."""
        around = [each for each in self.functions if each.lineno <= line <= (each.end_lineno or 0)]
        return max(around, key=lambda each: each.lineno, default=None)

    def class_at(self, line: int) -> str:
        """Return the name of the class around a line; empty without one."""
        around = [each for each in self.classes.values() if each.lineno <= line <= (each.end_lineno or 0)]
        return max(around, key=lambda each: each.lineno).name if around else ""

    def is_made_equal(self, name: str, line: int, since: int = 0) -> bool:
        """True if a collective before a line of the same function has given a name the same value on all ranks."""
        function = self.function_at(line)
        first = max(since, function.lineno if function is not None else 0)
        calls = [call for op in _MAKES_EQUAL for call in self.calls.get(op, []) if first <= call.lineno < line]
        return any(call.args and ast.unparse(call.args[0]) == name for call in calls)

    def is_equal_test(self, line: int) -> bool:
        """True if the test of a line depends on nothing but what a collective has made equal on all ranks."""
        waiting, equal = [node for node in [self.tests.get(line)] if node is not None], False
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Name, ast.Attribute)) and self.is_made_equal(ast.unparse(node), line):
                equal = True
            elif isinstance(node, ast.Name) and node.id not in _EQUAL_FUNCTIONS:
                return False
            else:
                waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return equal

    def values_of(self, name: str, line: int) -> list[Value]:
        """Return what a name may stand for at a line: its assignments in the same function, or in the whole file.

        For a parameter, the arguments of all calls of its function; for an imported name, its values there.
        """
        values = self._own_values(name, line)
        owner, _, attribute = name.rpartition(".")
        if values or not owner or owner == "self" or (of_class := self._class_of(owner, line)) is None:
            return values
        return [Value(of_class[0], node, at) for at, node in of_class[0].assigned.get(f"self.{attribute}", [])]

    def _own_values(self, name: str, line: int) -> list[Value]:
        """Return the same without the attributes of objects."""
        head, _, rest = name.partition(".")
        values = [Value(self, node, at) for at, node in self.assigned.get(name, [])]
        if not values and head in self.imports:
            path, imported = self.imports[head]
            other = ProgramFile.of(path)
            return [Value(other, node, at) for at, node in other.assigned.get(imported or rest, [])]
        function = self.function_at(line)
        if function is None or rest:
            return values
        inside = [value for value in values if function.lineno <= value.line <= (function.end_lineno or 0)]
        if inside:
            return inside
        names = [each.arg for each in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]
        return self._arguments(function, names, name) if name in names else values

    def _arguments(self, function: AnyFunction, names: list[str], name: str) -> list[Value]:
        """Return what the calls of a function give for a parameter, in this file and in those that import it."""
        called = self.class_at(function.lineno) if function.name == "__init__" else function.name
        position = names.index(name) - (names[0] in ("self", "cls"))
        return [
            Value(file, value, call.lineno)
            for file in (self, *map(ProgramFile.of, importers(self.path)))
            for call in file.calls.get(called, [])
            for value in [*call.args[position : position + 1], *(k.value for k in call.keywords if k.arg == name)]
        ]

    def results_of(self, call: ast.Call, line: int) -> list[Value]:
        """Return what the function of a call returns or yields; if that is a constant such as True, also its tests."""
        return [value for file, function in self.functions_of(call, line) for value in _results(file, function)]

    def functions_of(self, call: ast.Call, line: int) -> list[tuple[ProgramFile, AnyFunction]]:
        """Return the functions of the program that a call may run."""
        name = called_name(call)
        own = [(self, function) for function in self.functions if function.name == name]
        if own:
            return own
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        path, imported = self.imports.get(owner or name, ("", ""))
        if path and (not owner or not imported):
            other = ProgramFile.of(path)
            return [(other, function) for function in other.functions if function.name == (imported or name)]
        of_class = self._class_of(owner, line) if owner else None
        if of_class is None:
            return []
        file, around = of_class
        inside = [each for each in file.functions if around.lineno <= each.lineno <= (around.end_lineno or 0)]
        return [(file, function) for function in inside if function.name == name]

    def _class_of(self, name: str, line: int) -> tuple[ProgramFile, ast.ClassDef] | None:
        """Return the class of the object that a name stands for, if the program has it; None if that is not known."""
        waiting = [Value(self, node, line) for node in [_parsed(name)] if node is not None]
        for _ in range(_MOST_NAMES):
            for file, node, _ in waiting:
                if isinstance(node, ast.Call) and (found := file.find_class(called_name(node))) is not None:
                    return found
            names = [each for each in waiting if isinstance(each.node, (ast.Name, ast.Attribute))]
            waiting = [value for file, node, at in names for value in file._own_values(ast.unparse(node), at)]
            waiting = waiting[:_MOST_FILES]
        return None

    def find_class(self, name: str) -> tuple[ProgramFile, ast.ClassDef] | None:
        """Return a class of this file, or one that it imports, and its file."""
        if name in self.classes:
            return self, self.classes[name]
        path, imported = self.imports.get(name, ("", ""))
        other = ProgramFile.of(path) if path and imported else None
        return (other, other.classes[imported]) if other is not None and imported in other.classes else None


@lru_cache(maxsize=64)
def importers(path: str) -> tuple[str, ...]:
    """Return the program's files that import one, of its folder and those above it."""
    own, importing = Path(path), []
    for folder in own.parents[:_MOST_LEVELS] if is_user_file(path) else ():
        try:
            files = sorted(each for each in folder.glob("*.py") if each != own)[:_MOST_FILES]
        except (OSError, ValueError):
            continue
        near = (str(each) for each in files if _mentions(each, own.parent.name if own.stem == "__init__" else own.stem))
        importing += [each for each in near if path in {file for file, _ in ProgramFile.of(each).imports.values()}]
    return tuple(importing)


def _mentions(file: Path, name: str) -> bool:
    """True if a file has a name in its text: most files need not be parsed."""
    try:
        return name.encode() in read_bounded(file, most_bytes=_MOST_BYTES)
    except (OSError, ValueError, FrogError):
        return False


def _imported(path: str, statement: ast.Import | ast.ImportFrom) -> dict[str, tuple[str, str]]:
    """Return what an import gives of the program's own files, by the names that it is given here."""
    imported: dict[str, tuple[str, str]] = {}
    for alias in statement.names:
        if isinstance(statement, ast.Import):
            file = _module_file(path, alias.name, 0)
            known_as = alias.asname or alias.name
            imported |= {known_as: (file, "")} if file else {}
            continue
        module, level = statement.module or "", statement.level
        submodule = _module_file(path, ".".join(filter(None, (module, alias.name))), level)
        file = submodule or _module_file(path, module, level)
        imported |= {alias.asname or alias.name: (file, "" if submodule else alias.name)} if file else {}
    return imported


def _module_file(path: str, module: str, level: int) -> str:
    """Return the file of a module of the program as another one imports it; empty if it lies elsewhere."""
    parents = Path(path).parents
    folders = parents[level - 1 : level] if level else parents[:_MOST_LEVELS]
    parts = [part for part in module.split(".") if part]
    for folder in folders if parts else ():
        for file in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if is_user_file(str(file)) and file.is_file():
                return str(file)
    return ""


def _results(file: ProgramFile, function: AnyFunction) -> Iterator[Value]:
    nodes = list(ast.walk(function))
    values = [node.value for node in nodes if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None]
    equal = [value for value in values if file.is_made_equal(ast.unparse(value), value.lineno)]
    yield from (Value(file, value, value.lineno) for value in values if value not in equal)
    if any(isinstance(value, ast.Constant) for value in values):
        tests = (node.test for node in nodes if isinstance(node, (ast.If, ast.While)))
        yield from (Value(file, test, test.lineno) for test in tests)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the parts of an assignment, such as of `a, b = 1, 2`."""
    if not isinstance(target, ast.Tuple):
        yield target, value
        return
    parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
    yield from zip(target.elts, parts or [value] * len(target.elts), strict=True)


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None

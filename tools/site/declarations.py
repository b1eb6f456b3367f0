"""Declarations of a module, read from its source without an import, so that no page needs torch."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Field:
    """A field of a class, with its docstring."""

    name: str
    type: str
    default: str | None
    doc: str
    unit: str | None = None
    """`Unit` of its annotation."""


@dataclass(frozen=True)
class Function:
    """A function or a method, with its signature."""

    name: str
    signature: str
    doc: str


@dataclass(frozen=True)
class Class:
    """A class with its fields and its public methods."""

    name: str
    bases: tuple[str, ...]
    doc: str
    fields: tuple[Field, ...]
    methods: tuple[Function, ...]


@dataclass(frozen=True)
class Module:
    """Public names of a file, in order."""

    doc: str
    items: tuple[Class | Function, ...]

    def class_named(self, name: str) -> Class:
        return next(item for item in self.items if isinstance(item, Class) and item.name == name)


def read_module(path: Path) -> Module:
    """Return the declarations of a source file."""
    tree = ast.parse(path.read_text())
    return Module(ast.get_docstring(tree) or "", tuple(_items(tree.body)))


def _items(body: list[ast.stmt]) -> list[Class | Function]:
    found: list[Class | Function] = []
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found.append(_class(node))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found.append(_function(node))
    return found


def _class(node: ast.ClassDef) -> Class:
    methods = [item for item in _items(node.body) if isinstance(item, Function)]
    bases = tuple(ast.unparse(base) for base in node.bases)
    return Class(node.name, bases, ast.get_docstring(node) or "", tuple(_fields(node.body)), tuple(methods))


def _fields(body: list[ast.stmt]) -> list[Field]:
    """Return the annotated names; a string after a name is its docstring."""
    found = []
    for at, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        default = None if node.value is None else ast.unparse(node.value)
        kind, unit = _type_and_unit(node.annotation)
        found.append(Field(node.target.id, ast.unparse(kind), default, _text(body[at + 1 : at + 2]), unit))
    return [field for field in found if not field.name.startswith("_") and not field.type.startswith("ClassVar")]


def _type_and_unit(annotation: ast.expr) -> tuple[ast.expr, str | None]:
    """Return `int` and "steps" for `Annotated[int, Unit("steps")]`; another annotation unchanged, without a unit."""
    match annotation:
        case ast.Subscript(
            value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, ast.Call(func=ast.Name(id="Unit"), args=args)])
        ):
            return kind, "".join(ast.literal_eval(arg) for arg in args)
    return annotation, None


def _text(nodes: list[ast.stmt]) -> str:
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return " ".join(node.value.value.split())
    return ""


def _function(node: ast.FunctionDef) -> Function:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    marks = {ast.unparse(mark) for mark in node.decorator_list}
    called = "" if marks & {"property", "cached_property", "functools.cached_property"} else _arguments(node.args)
    return Function(node.name, f"{node.name}{called}{returns}", ast.get_docstring(node) or "")


def _arguments(arguments: ast.arguments) -> str:
    words = ast.unparse(arguments)
    for name in ("self, ", "cls, ", "self", "cls"):
        if words == name or (name.endswith(", ") and words.startswith(name)):
            words = words.removeprefix(name)
            break
    return f"({words})"

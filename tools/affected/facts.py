"""What one Python file says about its dependencies: imports, names of modules in strings, words of commands."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

IMPORTING = ""
"""Name of the part that runs when a file is imported: all statements but definitions and assignments."""


@dataclass
class Part:
    """What one function, class, assigned name or method uses, or the code outside them."""

    imports: dict[str, str] = field(default_factory=dict)
    """Imported modules or names, `frog.plan.memory`, by the name that the code uses for them."""
    names: set[str] = field(default_factory=set)
    """Variables and arguments that it mentions."""
    attributes: set[str] = field(default_factory=set)
    """Names behind a dot."""
    strings: set[str] = field(default_factory=set)
    """String constants without docstrings. An f-string is one string with `{}` for each value."""
    words: set[str] = field(default_factory=set)
    """Those strings that may be arguments of a command: all but keys, indices and operands of comparisons."""
    paths: set[str] = field(default_factory=set)
    """Paths written with `/`: `docs/plan.md` for `ROOT / "docs" / "plan.md"`, and `{}` for what is not constant."""
    sequences: list[tuple[str | None, ...]] = field(default_factory=list)
    """Arguments of calls, lists and tuples, with None for what is not constant."""
    table: dict[str, str] = field(default_factory=dict)
    """Entries of dictionaries whose key and value are strings."""
    is_loader: bool = False
    """True if it imports a module whose name it computes."""

    def add(self, other: Part) -> None:
        self.imports.update({f"{len(self.imports)} {name}": target for name, target in other.imports.items()})
        self.names |= other.names
        self.attributes |= other.attributes
        self.strings |= other.strings
        self.words |= other.words
        self.paths |= other.paths
        self.sequences += other.sequences
        self.table.update(other.table)
        self.is_loader |= other.is_loader


@dataclass
class Facts:
    """The facts of a file, by part. Methods of a class are parts of their own, `Harness.train`, on request."""

    parts: dict[str, Part]
    assigned: set[str]
    """Parts that are assigned names."""
    always: set[str]
    """Parts that run without being named: registered by a decorator, hooks of pytest, automatic fixtures."""

    @cached_property
    def whole(self) -> Part:
        """All parts together."""
        whole = Part()
        for part in self.parts.values():
            whole.add(part)
        return whole


def read_facts(path: Path, module: str = "", *, methods: bool = False) -> Facts:
    """Return the facts of a file. module: its dotted name, to resolve relative imports and `__name__`."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    reader = _Reader(module, package, methods)
    reader.visit(ast.parse(path.read_bytes(), str(path)))
    return Facts(dict(reader.parts), reader.assigned, reader.always)


_LOADERS = {"import_module", "run_module", "__import__"}
_HARMLESS = {
    *("dataclass", "cache", "lru_cache", "property", "contextmanager", "asynccontextmanager", "overload", "wraps"),
    *("fixture", "parametrize", "slow", "timeout", "skipif", "hookimpl", "total_ordering", "final", "no_grad"),
    *("runtime_checkable", "staticmethod", "classmethod", "cached_property", "once_differentiable", "unique"),
}
"""Decorators that do not register what they decorate."""

_TAKES_NO_COMMAND = {
    *("Path", "PurePath", "joinpath", "with_name", "glob", "rglob", "mkdir", "mktemp", "chdir", "copytree", "copy"),
    *("get", "pop", "setdefault", "getattr", "setattr", "hasattr", "delattr", "startswith", "endswith", "partition"),
    *("replace", "count", "index", "find", "sub", "search", "match", "fullmatch", "findall", "compile", "raises"),
}
"""Functions whose arguments are no words of a command."""


class _Reader(ast.NodeVisitor):
    def __init__(self, module: str, package: str, methods: bool) -> None:
        self._module, self._package, self._methods = module, package, methods
        self.parts: defaultdict[str, Part] = defaultdict(Part)
        self._part = self.parts[IMPORTING]
        self.assigned: set[str] = set()
        self.always = {IMPORTING}
        self._inside: list[str] = []

    # ---- parts -------------------------------------------------------------------------------------------------------

    def visit_Module(self, node: ast.Module) -> None:
        self._statements(node.body)

    def _statements(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text:  # a docstring, or the text below a field
                self.visit(statement)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = self._begin(node)
        for outside in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(outside)
        self._part.names |= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        self._statements(node.body)
        self._inside.pop()
        self._part = before

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        before = self._begin(node)
        for outside in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outside)
        self._statements(node.body)
        self._inside.pop()
        self._part = before

    def _begin(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Part:
        """Enter a definition; return the part to return to."""
        before = self._part
        is_method = self._methods and len(self._inside) == 1 and not node.name.startswith("__")
        if not self._inside or (is_method and self._inside[0][0].isupper()):
            name = ".".join([*self._inside, node.name])
            self._part = self.parts[name]
            decorators = {_last_name(decorator) for decorator in node.decorator_list}
            automatic = any("autouse" in ast.dump(decorator) for decorator in node.decorator_list)
            if not self._inside and (node.name.startswith("pytest_") or automatic or decorators - _HARMLESS):
                self.always.add(name)
        self._inside.append(node.name)
        return before

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if self._inside or len(names) != len(node.targets):
            self.generic_visit(node)
        else:
            self._assigned(names, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if not self._inside and isinstance(node.target, ast.Name):
            self._assigned([node.target.id], node.value)
        else:
            if self._inside and self._inside[-1][0].isupper():  # a field, whose type a decoder reads
                self.visit(node.annotation)
            self.visit(node.target)
            if node.value is not None:
                self.visit(node.value)

    def _assigned(self, names: list[str], value: ast.expr | None) -> None:
        self.assigned |= set(names)
        before = self._part
        for name in names:
            self._part = self.parts[name]
            if value is not None:
                self.visit(value)
        self._part = before

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" not in ast.dump(node.test):
            self.visit(node.test)
            self._statements(node.body)
        self._statements(node.orelse)

    # ---- facts -------------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._part.imports[alias.asname or alias.name] = alias.name

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self._package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
        for alias in node.names:
            self._part.imports[alias.asname or alias.name] = f"{base}.{alias.name}"

    def visit_Name(self, node: ast.Name) -> None:
        self._part.names.add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._part.attributes.add(node.attr)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str):
            self._part.strings.add(node.value)
            self._part.words.add(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        text = self._text(node) or ""
        self._part.strings.add(text)
        self._part.words.add(text)
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.visit(value.value)

    def _not_a_word(self, node: ast.expr | None) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._part.strings.add(node.value)
        elif node is not None:
            self.visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        self._not_a_word(node.slice)

    def visit_Compare(self, node: ast.Compare) -> None:
        for operand in (node.left, *node.comparators):
            self._not_a_word(operand)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self._not_a_word(key)
            self.visit(value)
            name, text = None if key is None else self._text(key), self._text(value)
            if name is not None and text is not None:
                self._part.table[name] = text

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if not isinstance(node.op, ast.Div):
            self.generic_visit(node)
            return
        words: list[str] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp) and isinstance(left.op, ast.Div):
            text = self._text(left.right)
            if text is None:
                self.visit(left.right)
            words = ["{}" if text is None else text, *words]
            left = left.left
        self.visit(left)
        self._part.paths.add("/".join(words))

    def visit_Call(self, node: ast.Call) -> None:
        self._part.sequences.append(tuple(self._text(argument) for argument in node.args))
        if _last_name(node.func) in _LOADERS and node.args and not isinstance(node.args[0], ast.Constant):
            self._part.is_loader = True
        if _last_name(node.func) in _TAKES_NO_COMMAND:
            self.visit(node.func)
            for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
                self._not_a_word(argument)
        else:
            self.generic_visit(node)

    def _sequence(self, node: ast.List | ast.Tuple) -> None:
        self._part.sequences.append(tuple(self._text(element) for element in node.elts))
        self.generic_visit(node)

    visit_List = _sequence
    visit_Tuple = _sequence

    def _text(self, node: ast.expr) -> str | None:
        """Return the text of a string or an f-string, with `{}` for what it computes; None for another expression."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if not isinstance(node, ast.JoinedStr):
            return None
        text = ""
        for value in node.values:
            if isinstance(value, ast.Constant):
                text += str(value.value)
            elif isinstance(value, ast.FormattedValue) and _last_name(value.value) == "__name__":
                text += self._module
            else:
                text += "{}"
        return text


def _last_name(node: ast.expr) -> str:
    """Return `cache` for `functools.cache(...)`."""
    while isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

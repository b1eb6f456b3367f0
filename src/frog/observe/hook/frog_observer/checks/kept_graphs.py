"""Graphs of autograd that outlive their step, and the name in the user's program that holds them.

A mark is put into the metadata of the node that made a loss or an output, which live as long as the node: nothing is
kept alive. If marks of several earlier steps are there, the variables of the running functions are searched for what
reaches them.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import gc
import linecache
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from .. import frames  # noqa: TID252 its absolute name differs below a launcher
from . import fingerprints
from .user_lines import OPTIMIZED, variables_of

_KEY = "frog_check"
_MOST_MARKS, _MOST_OF_STEP, _MOST_OUTPUTS = 512, 16, 4
_LEAST_AGE = 2
"""Steps after which a graph should be gone: a variable may hold that of the step before."""
LEAST_STEPS = 3
"""Earlier steps whose graphs are there together from which on their holder is searched for."""
_MOST_SEARCHES = 3
_MOST_NODES, _MOST_NODES_IN_ALL, _MOST_ITEMS, _MOST_DEPTH = 4000, 200_000, 1000, 3
"""The flag of code whose variables are no mapping, which is that of functions."""
_ADDERS = ("append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put")


class _Mark:
    """Which step made a node, and where."""

    __slots__ = ("__weakref__", "line", "step", "what")

    def __init__(self, step: int, what: str, line: Any) -> None:
        self.step, self.what, self.line = step, what, line


class KeptGraphs:
    """Marks the graphs of sampled steps, and tells which of them are still there."""

    def __init__(self) -> None:
        self._marks: list[Any] = []
        """Weak references to marks that nodes hold."""
        self._num_of_step: dict[int, int] = {}
        self._num_searches = 0
        self._holder: dict[str, Any] | None = None
        self._waits = False
        """True if graphs were seen that only waited for the collector."""

    def mark(self, value: Any, step: int, what: str, line: Any) -> None:
        """Mark the nodes that made some tensors, "loss" or "output", in a step that is under way."""
        with contextlib.suppress(Exception):  # a tensor of another kind, as of torch.func
            for tensor in fingerprints.tensors_of(value)[:_MOST_OUTPUTS]:
                node = tensor.grad_fn
                if node is None or _KEY in node.metadata or self._is_full(step):
                    continue
                mark = node.metadata[_KEY] = _Mark(step, what, line)
                self._marks.append(weakref.ref(mark))
                self._num_of_step = {step: self._num_of_step.get(step, 0) + 1}

    def _is_full(self, step: int) -> bool:
        return len(self._marks) >= _MOST_MARKS or self._num_of_step.get(step, 0) >= _MOST_OF_STEP

    def look(self, step: int, frame: Any, modules: Iterable[Any]) -> dict[str, Any] | None:
        """Return how many earlier steps' graphs are there at the end of a step; None if none is.

        frame: where the program is. modules: its outermost modules, whose attributes may hold graphs too.
        """
        old = self._old(step)
        if _are_many(old) and self._holder is None and self._num_searches < _MOST_SEARCHES:
            self._num_searches += 1
            # what only refers to itself is not kept, it waits for the collector
            old.clear()
            gc.collect()
            old = self._old(step)
            self._waits = self._waits or not _are_many(old)
            if _are_many(old):
                with contextlib.suppress(Exception):  # an object of the program whose attributes cannot be read
                    self._holder = _find_holder(frame, modules, step - _LEAST_AGE)
        elif _are_many(old) and self._holder is None and self._waits:
            return None
        return self._described(old) if old else None

    def _old(self, step: int) -> list[_Mark]:
        """Return the marks of steps that should be gone; forget those that are."""
        self._marks = [each for each in self._marks if each() is not None]
        alive = [each() for each in self._marks]
        return [each for each in alive if each is not None and each.step <= step - _LEAST_AGE]

    def _described(self, old: list[_Mark]) -> dict[str, Any]:
        first = min(old, key=lambda mark: mark.step)
        return {
            "steps": len({mark.step for mark in old}),
            "first": first.step,
            "what": first.what,
            "line": first.line,
            **({"holder": self._holder} if self._holder is not None else {}),
        }


def _are_many(marks: list[_Mark]) -> bool:
    return len({mark.step for mark in marks}) >= LEAST_STEPS


# ---- who holds them --------------------------------------------------------------------------------------------------


class _Search:
    """What the variables of a program reach.

    last: the last step whose graph should be gone.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._known: dict[int, set[int]] = {}
        """The steps that a container reaches, by its id."""
        self._objects: set[int] = set()
        self._num_nodes = 0

    def steps_of(self, value: Any, depth: int = 0) -> set[int]:
        """Return earlier steps whose marked graphs a tensor or a container reaches, until they are enough."""
        torch: Any = sys.modules["torch"]
        if isinstance(value, torch.Tensor):
            return self._steps_below(value.grad_fn)
        if not isinstance(value, (list, tuple, deque, set, dict)) or depth > _MOST_DEPTH:
            return set()
        if id(value) not in self._known:
            steps: set[int] = set()
            self._known[id(value)] = steps
            items = list(value.values()) if isinstance(value, dict) else list(value)
            for each in items[:_MOST_ITEMS]:
                steps |= self.steps_of(each, depth + 1)
                if len(steps) >= LEAST_STEPS:
                    break
        return self._known[id(value)]

    def _steps_below(self, root: Any) -> set[int]:
        steps: set[int] = set()
        nodes, seen = deque([root]), {root}
        while nodes and len(seen) < _MOST_NODES and self._num_nodes < _MOST_NODES_IN_ALL and len(steps) < LEAST_STEPS:
            node = nodes.popleft()
            self._num_nodes += 1
            if node is None:
                continue
            mark = node.metadata.get(_KEY)
            if mark is not None and mark.step <= self._last:
                steps.add(mark.step)
            for parent, _ in node.next_functions:
                if parent not in seen:
                    seen.add(parent)
                    nodes.append(parent)
        return steps

    def holders(self, name: str, value: Any, owner: Any = None, depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yield the name of a variable that reaches graphs of enough steps, or of an attribute, with its object."""
        if len(self.steps_of(value)) >= LEAST_STEPS:
            yield name, owner
        elif depth < _MOST_DEPTH and id(value) not in self._objects and _has_attributes(value):
            self._objects.add(id(value))
            for key, each in list(vars(value).items())[:_MOST_ITEMS]:
                if key not in ("_parameters", "_buffers"):
                    yield from self.holders(str(key), each, value, depth + 1)


def _has_attributes(value: Any) -> bool:
    """True for an object of a class of the user's, and for a module."""
    torch: Any = sys.modules["torch"]
    if isinstance(value, torch.nn.Module):
        return True
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return frames.is_user_file(_file_of(type(value)))


def _file_of(kind: type) -> str:
    """Return the file in which a class was made; that of torch's observer for a class without one."""
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or __file__)


def _find_holder(frame: Any, modules: Iterable[Any], last: int) -> dict[str, Any] | None:
    """Return the name that holds graphs of several steps, and the line that adds to it."""
    search = _Search(last)
    holders: list[tuple[int, dict[str, Any]]] = []
    for code, name, value in variables_of(frame):
        for held, owner in search.holders(name, value):
            holders.append(_with_line(held, owner, code))
    for module in modules:
        for part in list(module.modules()):
            for held, owner in search.holders("", part):
                holders.append(_with_line(held, owner, None))
    return min(holders, key=lambda each: each[0])[1] if holders else None


def _with_line(name: str, owner: Any, code: CodeType | None) -> tuple[int, dict[str, Any]]:
    """Return a name with the line that adds to it, and how much that line looks like it: less is more."""
    file = code.co_filename if code is not None else ""
    is_local = code is not None and owner is None and bool(code.co_flags & OPTIMIZED)
    lines = {line for _, line in dis.findlinestarts(code) if line is not None} if code and is_local else set()
    if owner is not None:
        file = _file_of(type(owner))
    file = frames.full_path(file)
    rank, line, function = 3, 0, ""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        tree = ast.parse("".join(linecache.getlines(file)))
        for function_name, node in _statements(tree):
            kind = _adds_to(node, name, owner is not None)
            if kind is not None and kind < rank and (not lines or node.lineno in lines):
                rank, line, function = kind, node.lineno, function_name
    is_found = rank < 3
    return rank, {"name": name, "attribute": owner is not None, "line": [file, line, function] if is_found else None}


def _statements(tree: Any, function: str = "<module>") -> Iterator[tuple[str, Any]]:
    """Yield all statements of a file with the name of the function they are in."""
    for node in ast.iter_child_nodes(tree):
        own = node.name if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        if isinstance(node, (ast.AugAssign, ast.Assign, ast.AnnAssign, ast.Expr)):
            yield own, node
        yield from _statements(node, own)


def _adds_to(node: Any, name: str, is_attribute: bool) -> int | None:
    """Return how a statement adds to what a name holds: 0 for sums and lists, 1 if from itself, 2 for an attribute."""
    if isinstance(node, ast.AugAssign):
        return 0 if _is(node.target, name, is_attribute) else None
    if isinstance(node, ast.Expr):
        call = node.value
        adds = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _ADDERS
        return 0 if adds and _is(call.func.value, name, is_attribute) else None  # type: ignore[attr-defined]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    targets = [each for target in targets for each in _flat(target)]
    if not any(_is(each, name, is_attribute) for each in targets) or node.value is None:
        return None
    if any(isinstance(each, ast.Subscript) for each in targets if _is(each, name, is_attribute)):
        return 0
    if any(_is(each, name, is_attribute) for each in ast.walk(node.value)):
        return 1
    return 2 if is_attribute else None


def _flat(target: Any) -> list[Any]:
    """Return the targets of an assignment that unpacks."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    return [each for part in parts for each in _flat(part)] if parts else [target]


def _is(node: Any, name: str, is_attribute: bool) -> bool:
    """True for a variable or an attribute of a name, or a part of it."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call, ast.Starred)):
        if isinstance(node, ast.Attribute) and is_attribute and node.attr == name:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and not is_attribute and node.id == name

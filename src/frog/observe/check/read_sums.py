"""What a program does with a sum over ranks: whether anything divides it before a log or a decision reads it.

Reads the source of the function that has the sum, and of the functions that call it in the same file. Where a sum goes
is followed through names, `.item()` and `return`; if it goes anywhere else, nothing is said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from frog.observe.check.rank_records import Place

_SUMS = ("all_reduce", "reduce")
_SAME = ("item", "detach", "cpu", "clone", "float", "double", "to", "numpy", "tolist", "squeeze", "unsqueeze", "view")
"""Methods, and `float`, that return the same number."""
_SAME_FUNCTIONS = ("float", "round", "format", "str", "tensor", "abs", "max", "min")
_SHOWS = ("print", "info", "debug", "warning", "log", "write", "set_postfix", "set_description", "add_scalar", "print0")
_KEEPS = ("update",)
"""A meter's method: what becomes of the number is not followed."""
_DECIDES = ("step", "exp", "isnan", "isfinite")
_LOSSES = ("cross_entropy", "mse_loss", "nll_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "kl_div")
_LOSS_NAMES = ("criterion", "loss_fn", "loss_func", "loss_function")
_MEANS = ("avg", "mean", "average", "global_avg")
"""Attributes of meters."""
_MOST_DEPTH = 4
_MOST_BYTES = 1 << 21

_Reads = list[tuple[ast.AST, bool]]
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


@dataclass(frozen=True)
class Reading:
    """Where a sum is read that nothing divides."""

    place: Place
    decides: bool
    """True if a branch or a scheduler depends on it; False if it is only shown."""
    is_mean: bool
    """True if the source says that a mean was added."""
    is_kept: bool = False
    """True if a meter takes it, which may divide it later."""


class _Unknown(Exception):
    """The sum is divided, or goes where it is not followed."""


def read_sum(line: Place) -> Reading | None:
    """Return where the sum over ranks of a line is read; None if something divides it, or that is not known."""
    tree = _parsed(line.file)
    call = next((each for each in _calls(tree) if each.lineno <= line.line <= (each.end_lineno or 0)), None)
    if tree is None or call is None:
        return None
    reads: _Reads = []
    source = _Source(tree)
    given = call.args[0] if call.args else None
    try:
        if isinstance(source.parents[call], ast.Expr) and given is not None:
            source.follow_name(ast.unparse(given), source.function_of(call), call, reads, 0)
        else:
            source.follow(call, reads, 0)
    except (_Unknown, RecursionError):
        return None
    if not reads:
        return None
    node, decides = next((read for read in reads if read[1]), reads[0])
    is_mean = given is not None and source.is_mean(given, source.function_of(call), 0)
    return Reading(Place(line.file, getattr(node, "lineno", line.line), ""), decides, is_mean, source.is_kept)


@lru_cache(maxsize=8)
def _parsed(file: str) -> ast.Module | None:
    try:
        path = Path(file)
        return ast.parse(path.read_bytes()) if path.stat().st_size < _MOST_BYTES else None
    except (OSError, SyntaxError, ValueError):
        return None


def _calls(tree: ast.AST | None) -> Iterator[ast.Call]:
    """Yield the calls that may add over ranks."""
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and _name(node.func) in _SUMS:
            yield node


def _name(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


class _Source:
    def __init__(self, tree: ast.Module) -> None:
        self.is_kept = False
        """True if a meter takes the sum."""
        self.tree = tree
        self.parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def function_of(self, node: ast.AST) -> _Function:
        while not isinstance(node, _Function):
            node = self.parents[node]
        return node

    def follow_name(
        self, name: str, function: _Function, own: ast.Call | ast.Assign, reads: _Reads, depth: int
    ) -> None:
        """Follow a variable through a function. own: the call that made the sum, which does not read it."""
        for node in ast.walk(function):
            if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or ast.unparse(node) != name:
                continue
            if isinstance(node.ctx, ast.Store):
                parent = self.parents[node]
                if isinstance(parent, ast.AugAssign) and isinstance(parent.op, (ast.Div, ast.Mult, ast.FloorDiv)):
                    raise _Unknown
            elif self.parents[node] is not own and node.lineno >= own.lineno:
                self.follow(node, reads, depth)

    def follow(self, node: ast.AST, reads: _Reads, depth: int) -> None:
        """Follow a value out of its expression: to a division, a log, a branch, a name, or the function's callers."""
        if depth > _MOST_DEPTH:
            raise _Unknown
        value, around = node, self._around(node)
        while around is not None:
            value, around = around, self._around(around)
        parent = self.parents[value]
        match parent:
            case ast.Call() if value is not parent.func and _name(parent.func) in (*_SHOWS, *_DECIDES, *_KEEPS):
                name = _name(parent.func)
                self.is_kept = self.is_kept or name in _KEEPS
                reads.append((parent, name in _DECIDES))
            case ast.FormattedValue() | ast.JoinedStr():
                reads.append((parent, False))
            case ast.Compare() | ast.If() | ast.While():
                reads.append((parent, True))
            case ast.Assign(targets=[ast.Name(id=name)]):
                self.follow_name(name, self.function_of(parent), parent, reads, depth + 1)
            case ast.Tuple() if isinstance(self.parents[parent], ast.Return):
                self._follow_callers(self.function_of(parent), reads, depth, parent.elts.index(value))  # type: ignore[arg-type]
            case ast.Return():
                self._follow_callers(self.function_of(parent), reads, depth)
            case ast.Expr():
                pass
            case _:
                raise _Unknown

    def _around(self, node: ast.AST) -> ast.AST | None:
        """Return the expression around a value that has the same value or holds it unchanged; None for others."""
        parent = self.parents[node]
        if isinstance(parent, ast.Attribute):
            call = self.parents[parent]
            return call if parent.attr in _SAME and isinstance(call, ast.Call) else None
        if isinstance(parent, ast.Call):
            return parent if node is not parent.func and _name(parent.func) in _SAME_FUNCTIONS else None
        return parent if isinstance(parent, (ast.keyword, ast.Dict, ast.IfExp, ast.UnaryOp, ast.BoolOp)) else None

    def _callers(self, function: _Function) -> list[ast.Call]:
        name = getattr(function, "name", "")
        return [each for each in ast.walk(self.tree) if isinstance(each, ast.Call) and _name(each.func) == name]

    def _follow_callers(self, function: _Function, reads: _Reads, depth: int, place: int | None = None) -> None:
        """Follow what a function returns. place: its place in a tuple that is returned; None for the whole."""
        if not self._callers(function):
            raise _Unknown
        for call in self._callers(function):
            if place is None:
                self.follow(call, reads, depth + 1)
                continue
            parent = self.parents[call]
            target = parent.targets[0] if isinstance(parent, ast.Assign) else None
            if not isinstance(parent, ast.Assign) or not isinstance(target, ast.Tuple) or len(target.elts) <= place:
                raise _Unknown
            self.follow_name(ast.unparse(target.elts[place]), self.function_of(call), parent, reads, depth + 1)

    def _is_given_a_mean(self, name: str, function: _Function, depth: int) -> bool:
        """True if all callers of a function give it a mean as the argument with a name."""
        if isinstance(function, ast.Module):
            return False
        names = [each.arg for each in function.args.args]
        if name not in names:
            return False
        place, calls = names.index(name), self._callers(function)
        return bool(calls) and all(
            len(call.args) > place and self.is_mean(call.args[place], self.function_of(call), depth) for call in calls
        )

    def is_mean(self, value: ast.AST, function: _Function, depth: int) -> bool:
        """True if an expression is a mean over the rank's own batches or samples, not a share of all ranks' mean."""
        if depth > _MOST_DEPTH:
            return False
        if isinstance(value, ast.Name):
            own = [each for each in ast.walk(function) if isinstance(each, ast.Assign) and _sets(each, value.id)]
            set_by = [each.value for each in own if not _converts(each.value, value.id)]
            if not set_by:
                return self._is_given_a_mean(value.id, function, depth + 1)
            return all(self.is_mean(each, function, depth + 1) for each in set_by)
        if isinstance(value, ast.Attribute):
            return value.attr in _MEANS
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            return _is_own_number(value.right, function)
        if not isinstance(value, ast.Call):
            return False
        name = _name(value.func)
        if name in (*_LOSSES, *_LOSS_NAMES):
            return not any(each.arg == "reduction" for each in value.keywords)
        if name == "mean" and isinstance(value.func, ast.Attribute):
            return True
        if isinstance(value.func, ast.Attribute) and name in _SAME and not value.args[1:]:
            inner = value.func.value
            is_module = isinstance(inner, ast.Name) and inner.id in ("torch", "np")
            return self.is_mean(value.args[0] if is_module and value.args else inner, function, depth + 1)
        return name in _SAME_FUNCTIONS and bool(value.args) and self.is_mean(value.args[0], function, depth + 1)


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in node.targets)


def _converts(value: ast.AST, name: str) -> bool:
    """True for an expression that makes a variable into a tensor of the same number."""
    is_call = isinstance(value, ast.Call) and _name(value.func) in (*_SAME, *_SAME_FUNCTIONS)
    return is_call and any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(value))


def _is_own_number(divisor: ast.AST, function: _Function) -> bool:
    """True for a number of batches or samples that the rank has counted itself: a sum of ones, or a loader's length."""
    if isinstance(divisor, ast.Call):
        given = ast.unparse(divisor.args[0]) if divisor.args else ""
        if _name(divisor.func) in ("max", "min"):
            return any(_is_own_number(each, function) for each in divisor.args)
        is_own = "dataset" not in given and any(word in given for word in ("loader", "losses"))
        return is_own and _name(divisor.func) == "len"
    if isinstance(divisor, ast.BinOp) and isinstance(divisor.right, ast.Constant):
        return _is_own_number(divisor.left, function)  # a small number that keeps it from zero
    if not isinstance(divisor, ast.Name):
        return False
    counts = [
        each
        for each in ast.walk(function)
        if isinstance(each, ast.AugAssign) and ast.unparse(each.target) == divisor.id
    ]
    summed = any(each.args and ast.unparse(each.args[0]) == divisor.id for each in _calls(function))
    return bool(counts) and not summed and all(isinstance(each.op, ast.Add) for each in counts)

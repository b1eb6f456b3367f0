"""What the condition of a branch or a loop depends on: the rank, a file, a clock, random numbers, free memory, data.

Follows the names of a test back through the assignments, parameters and functions of one file. Where it
finds none of these, nothing is known: a name may come from another file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from frog.core.runs.observed import CodeLine
from frog.core.schema import shortened
from frog.observe.diagnose.program.code_blocks import RANK_TEST, Block, blocks_around, called_name, parse_file
from frog.observe.diagnose.program.code_partings import Parting, exits_of

_MOST_STEPS, _MOST_TEXT = 60, 90
_RANK = "the rank"
_KINDS = (
    ("random numbers", r"\b(random|rand\w*|choice|choices|uniform|shuffle|bernoulli|multinomial|uuid\d|token_hex)$"),
    ("a clock", r"\b(time|time_ns|monotonic|perf_counter|now|utcnow|today)$"),
    ("files", r"\b(exists|is_file|isfile|is_dir|isdir|listdir|scandir|iterdir|r?glob|stat|getmtime|getsize)$"),
    ("free memory", r"\b(virtual_memory|mem_get_info|memory_allocated|memory_reserved|\w*(available|free)_memory)$"),
    ("the environment", r"\b(get_?env|environ|gethostname|getpid|node|cpu_count|device_count)$"),
    ("numbers of its own data", r"\b(isfinite|isnan|isinf|isclose|allclose|numel|nonzero|argmax|item)$"),
    ("the number of its samples", r"\b(next|iter|qsize)$"),
    (_RANK, r"\b(get_rank|get_local_rank|get_node_local_rank|is_main_process)$"),
)
"""What a value may depend on, and the functions and names that read it."""
_PATTERNS = tuple((words, re.compile(pattern)) for words, pattern in _KINDS)
_TESTS = ("if", "else", "except")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Statement = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


def source_words(block: Block) -> str:
    """Return where the values of a block's test come from, with `; ` in front; empty if that is not known.

    A test with a rank in its text says so itself.
    """
    if block.kind not in ("if", "else", "return", "loop") or RANK_TEST.search(block.text):
        return ""
    try:
        return _File.of(block.file).words(block)
    except RecursionError:  # a sum of thousands of terms
        return ""


def sources_of_loop(parting: Parting, inside: Sequence[CodeLine]) -> str:
    """Return the same for a loop that one rank has left, and for the tests by which a rank leaves it.

    inside: the lines that led to the call of the rank that is in the loop, innermost first.
    """
    if not parting.was_common:
        return ""
    loops = [parting.block, *parting.around]
    exits = [exit_ for loop in loops for exit_ in exits_of(loop, inside)]
    return "".join(dict.fromkeys(map(source_words, [*loops, *exits])))


@dataclass
class _File:
    """The assignments and functions of a program's file."""

    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    assigned: dict[str, list[tuple[int, ast.expr]]] = field(default_factory=dict)
    """Lines and values, by the text of what is assigned."""
    calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """By the last name of the function."""
    tests: dict[int, ast.expr] = field(default_factory=dict)
    """The test of each `if` and `while`, and what a `for` goes through, by line."""

    @staticmethod
    @lru_cache(maxsize=16)
    def of(path: str) -> _File:
        """Return what a file contains; nothing if it cannot be read."""
        found, parsed = _File(), parse_file(path)
        for node in ast.walk(parsed[0]) if parsed is not None else ():
            if isinstance(node, _Function):
                found.functions.append(node)
            elif isinstance(node, ast.Call):
                found.calls.setdefault(called_name(node), []).append(node)
            elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
                found.tests.setdefault(node.lineno, node.test)
            elif isinstance(node, (ast.For, ast.AsyncFor)):
                found.tests.setdefault(node.lineno, node.iter)
                found.assigned.setdefault(ast.unparse(node.target), []).append((node.lineno, node.iter))
            elif isinstance(node, _Statement) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name, value in _pairs(target, node.value):
                        found.assigned.setdefault(ast.unparse(name), []).append((node.lineno, value))
        return found

    def words(self, block: Block) -> str:
        test = self.tests.get(block.line)
        if test is None:
            return ""
        first = self._first_step(test, block) if block.kind != "loop" else ""
        kinds = list(dict.fromkeys(kind for node in self._reached(test, block.file) for kind in _kinds_of(node)))
        others = [kind for kind in kinds if kind != _RANK][:2]
        what = f"{' and '.join(others)}, which may differ between ranks" if others else _RANK
        depends = (
            f"the {'loop' if block.kind == 'loop' else 'test'} in line {block.line} depends on {what}" if kinds else ""
        )
        return "".join(f"; {words}" for words in (first, depends) if words)

    def _first_step(self, test: ast.expr, block: Block) -> str:
        """Return the assignment of a test that is a name alone, as of a flag."""
        name = test.operand if isinstance(test, ast.UnaryOp) else test
        if not isinstance(name, (ast.Name, ast.Attribute)):
            return ""
        text = ast.unparse(name)
        values = self._values(text, block.line)
        if values and all(isinstance(value, ast.Constant) for _, value in values):
            under = self._set_under(block.file, values)
            return f"`{text}` is set in line {under[0]}, under {under[1]}" if under is not None else ""
        values = [(line, value) for line, value in values if not isinstance(value, ast.Constant)]
        if len(values) != 1 or values[0][0] == block.line or ast.unparse(values[0][1]) == text:
            return ""
        line, value = values[0]
        return f"`{text}` is `{shortened(ast.unparse(value), _MOST_TEXT)}` of line {line}"

    def _set_under(self, file: str, values: list[tuple[int, ast.expr]]) -> tuple[int, Block] | None:
        """Return the line and the test under which a flag is set, if there is one such test."""
        around = {line: blocks_around(CodeLine(file=file, line=line)) for line, _ in values}
        tests = {line: block for line, blocks in around.items() for block in blocks if block.kind in _TESTS}
        return next(iter(tests.items())) if len(tests) == 1 else None

    def _reached(self, test: ast.expr, file: str) -> Iterator[ast.AST]:
        """Yield the parts of a test, then those of the values of its names, and so on; of a flag, those of its test."""
        waiting: list[tuple[ast.expr, int]] = [(test, test.lineno)]
        seen: set[int] = set()
        while waiting and len(seen) < _MOST_STEPS:
            expression, line = waiting.pop(0)
            if id(expression) in seen:
                continue
            seen.add(id(expression))
            for node in ast.walk(expression):
                yield node
                if isinstance(node, (ast.Name, ast.Attribute)):
                    values = self._values(ast.unparse(node), line)
                    waiting += [(value, at) for at, value in values]
                    under = self._set_under(file, [each for each in values if isinstance(each[1], ast.Constant)])
                    if under is not None and (of_flag := self.tests.get(under[1].line)) is not None:
                        waiting.append((of_flag, of_flag.lineno))
                if isinstance(node, ast.Call):
                    waiting += [(value, value.lineno) for value in self._results(called_name(node))]

    def _values(self, name: str, line: int) -> list[tuple[int, ast.expr]]:
        """Return what a name may stand for at a line: its assignments in the same function, or in the whole file.

        For a parameter, the arguments of all calls of its function.
        """
        around = [each for each in self.functions if each.lineno <= line <= (each.end_lineno or 0)]
        function = max(around, key=lambda each: each.lineno, default=None)
        values = self.assigned.get(name, [])
        if function is None or "." in name:
            return values
        inside = [(at, value) for at, value in values if function.lineno <= at <= (function.end_lineno or 0)]
        names = [each.arg for each in [*function.args.posonlyargs, *function.args.args]]
        if inside or name not in names:
            return inside or values
        position = names.index(name) - (names[0] in ("self", "cls"))
        return [
            (call.lineno, value)
            for call in self.calls.get(function.name, [])
            for value in [*call.args[position : position + 1], *(k.value for k in call.keywords if k.arg == name)]
        ]

    def _results(self, name: str) -> Iterator[ast.expr]:
        """Yield what a function of the file returns or yields; if that is a constant such as True, also its tests."""
        for function in self.functions:
            if function.name != name:
                continue
            nodes = list(ast.walk(function))
            values = [
                node.value for node in nodes if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None
            ]
            yield from values
            if any(isinstance(value, ast.Constant) for value in values):
                yield from (node.test for node in nodes if isinstance(node, (ast.If, ast.While)))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the parts of an assignment, such as of `a, b = 1, 2`."""
    if not isinstance(target, ast.Tuple):
        yield target, value
        return
    parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
    yield from zip(target.elts, parts or [value] * len(target.elts), strict=True)


def _kinds_of(node: ast.AST) -> Iterator[str]:
    """Yield what a call or a name reads that may differ between ranks."""
    name = called_name(node) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Attribute) and node.attr == "environ":
        name = node.attr
    if isinstance(node, ast.Name) and node.id in ("rank", "local_rank", "RANK", "LOCAL_RANK", "global_rank"):
        name = "get_rank"
    yield from (words for words, pattern in _PATTERNS if name and pattern.search(name))

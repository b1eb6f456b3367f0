"""What a rank may still call after the line where it is, as far as the source of its program tells.

A rank that was seen outside of all collectives may yet call the one in which others wait. It cannot if nothing that its
functions still run, up to the end of the program, calls a collective, or anything of which that is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import dropwhile

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import called_name, is_readable, parse_file
from frog.observe.diagnose.program.code_lines import is_user_file

_HARMLESS_NAMES = """
sleep pause input select poll recv recv_into accept connect acquire release wait join get put result flock lockf
print len range dict str int float bool abs round repr isinstance getattr hasattr format strip split append items keys
values open close read readline readlines write flush exists is_file is_dir isfile isdir stat listdir getpid
time monotonic perf_counter debug info warning ones zeros item tolist numel
get_rank get_world_size is_initialized destroy_process_group
"""
HARMLESS = frozenset(_HARMLESS_NAMES.split())
"""Functions and methods, by their last name, that call no collective. A function of the program itself is read."""
_HARMLESS_CONTEXTS = frozenset(("open", "suppress", "no_grad", "inference_mode"))
_ENDLESS = frozenset(("input", "pause", "breakpoint", "set_trace"))
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_Loop = (ast.For, ast.AsyncFor, ast.While)
_STARTS_PROGRAMS = ("<frozen runpy>", "runpy.py")


def calls_nothing_more(stack: Sequence[CodeLine]) -> bool:
    """True if the source proves that a rank at some lines, innermost first, calls no further collective."""
    frames = list(dropwhile(lambda frame: not is_user_file(frame.file), stack))
    while frames and frames[-1].file.endswith(_STARTS_PROGRAMS):
        frames.pop()
    if not frames or frames[-1].function != "<module>":
        return False
    inner = ""
    for frame in frames:
        if not is_user_file(frame.file) or not is_readable(frame) or not _File.of(frame.file).is_done(frame, inner):
            return False
        inner = frame.function
    return True


def waits_for_itself(line: CodeLine, deadline_s: float | None) -> bool:
    """True if a line only waits, for longer than a deadline, and for nothing that another rank does."""
    if deadline_s is None or not is_readable(line):
        return False
    statement = next((each for each in _File.of(line.file).statements if _holds(each, line.line)), None)
    if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(statement.value, ast.Call):
        return False
    call, first = statement.value, next(iter(statement.value.args), None)
    if called_name(call) == "sleep" and isinstance(first, ast.Constant) and isinstance(first.value, (int, float)):
        return first.value >= deadline_s
    return called_name(call) in _ENDLESS


@dataclass
class _File:
    """The functions of a program's file, and what they call."""

    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=list)
    statements: list[ast.stmt] = field(default_factory=list)
    """Those without a body of their own."""

    @staticmethod
    @lru_cache(maxsize=16)
    def of(path: str) -> _File:
        """Return what a file contains; nothing if it cannot be read."""
        parsed = parse_file(path)
        if parsed is None:
            return _File()
        nodes = list(ast.walk(parsed[0]))
        functions = [node for node in nodes if isinstance(node, _Function)]
        simple = [node for node in nodes if isinstance(node, ast.stmt) and not hasattr(node, "body")]
        return _File(parsed[0], functions, simple)

    def is_done(self, frame: CodeLine, inner: str) -> bool:
        """True if a function calls no collective after a line. inner: the function that it calls there."""
        around = [function for function in self.functions if _holds(function, frame.line)]
        body = max(around, key=lambda function: function.lineno).body if around else self.tree.body
        ahead = _ahead(body, frame.line, inner)
        return ahead is not None and self._is_harmless(ahead, set())

    def _is_harmless(self, nodes: Iterable[ast.AST], seen: set[str]) -> bool:
        """True if no node calls a collective, as far as names tell. seen: functions that were read already."""
        for node in (part for each in nodes for part in _parts(each)):
            if isinstance(node, (ast.Import, ast.ImportFrom, ast.Await)):
                return False
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and not isinstance(node.iter, ast.Call):
                return False
            if isinstance(node, ast.withitem) and called_name(node.context_expr) not in _HARMLESS_CONTEXTS:
                return False
            if isinstance(node, ast.Call) and not self._calls_harmless(called_name(node), seen):
                return False
        return True

    def _calls_harmless(self, name: str, seen: set[str]) -> bool:
        own = [function for function in self.functions if function.name == name]
        if not own:
            return name in HARMLESS or name in _HARMLESS_CONTEXTS
        if name in seen:
            return True
        seen.add(name)
        return all(self._is_harmless(function.body, seen) for function in own)


def _ahead(body: Sequence[ast.stmt], line: int, inner: str) -> list[ast.AST] | None:
    """Return what a body still runs when it is at a line; None if the line is in none of its statements."""
    at = next((number for number, statement in enumerate(body) if _holds(statement, line)), None)
    if at is None:
        return None
    statement, rest = body[at], list(body[at + 1 :])
    return [*_rest_of(statement, line, inner), *rest]


def _rest_of(statement: ast.stmt, line: int, inner: str) -> list[ast.AST]:
    """Return what a statement still runs when it is at a line: a loop all of itself, a branch only its own."""
    if isinstance(statement, _Loop):
        return [statement]
    always: list[ast.AST] = []
    if isinstance(statement, ast.If):
        bodies = [statement.body, statement.orelse]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        bodies = [statement.body]
        always += statement.items
    elif isinstance(statement, ast.Try):
        bodies = [statement.body, *(handler.body for handler in statement.handlers), statement.orelse]
        always += [*statement.handlers, *statement.orelse, *statement.finalbody]
    else:
        return _unfinished(statement, inner)
    for each in bodies:
        if (ahead := _ahead(each, line, inner)) is not None:
            return [*ahead, *always]
    return [statement]


def _unfinished(statement: ast.stmt, inner: str) -> list[ast.AST]:
    """Return the calls of a simple statement that it has not made yet. inner: the function that it is in."""
    if isinstance(statement, (*_Function, ast.ClassDef, ast.Match)) or hasattr(statement, "handlers"):
        return [statement]
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    begun = [call for call in calls if called_name(call) == inner]
    done = {id(node) for call in begun[:1] for node in ast.walk(call)} if len(begun) == 1 else set()
    return [ast.Call(call.func, [], []) for call in calls if id(call) not in done]


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Go through a node and all that it runs: not the bodies of functions and classes that it only defines."""
    if isinstance(node, (*_Function, ast.ClassDef)):
        yield from (part for each in node.decorator_list for part in _parts(each))
    else:
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)

"""The loops and branches of a program's files: which of them hold a line, and how a rank leaves them.

The current file is read, which may have changed since the program ran.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from frog.core.errors import FrogError
from frog.core.runs.observed import CodeLine
from frog.core.schema import read_bounded

_MOST_BYTES, _MOST_TEST = 2 << 20, 200
RANK_TEST = re.compile(
    r"\b\w*(rank|is_main|is_master|master_process|main_process|is_first|is_last|is_chief|is_leader|process_zero|process_index"
    r"|global_zero|local_zero|node_zero|is_root|is_coordinator)\w*\b",
    re.IGNORECASE,
)
_KEEPS_RESULTS = re.compile(r"cache|memoi[sz]e", re.IGNORECASE)
_MAIN_TEST = re.compile(
    r"is_main|is_master|master_process|main_process|is_first|is_chief|is_leader|process_zero|global_zero|is_root|is_coordinator"
)
_Loop = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Block:
    """A block of a program."""

    kind: str
    """loop, if, else, except, try: the body of a `try` or of a `with suppress(…)` that continues after an error, cache:
    a function whose results are kept, or return: the rest of a function after a conditional return."""
    text: str
    """Its first line, such as `for batch in loader:`."""
    line: int
    file: str
    first: int
    """The first and last line that it holds: of a loop also its head."""
    last: int
    tests_rank: bool = False
    """True if it is a branch whose test names a rank."""
    over: str = ""
    """Of a loop: the name that it goes through, as in `for name in pending:`; "{}" if that is a set itself."""
    function: str = ""
    """Of a return: the function that it leaves. Of a loop: the function that returns what it goes through."""
    is_counted: bool = False
    """True if it is a branch whose test depends only on the round of a loop over a range, as `step % 10 == 0`."""
    is_partial: bool = False
    """True if it is a part of a line, as `f(x)` of `y = f(x) if x else g()`."""
    besides: frozenset[str] = frozenset()
    """What the rest of the statement calls, if the block is a part of a line or a comprehension in it."""
    says: tuple[str, ...] = ()
    """Words that the handler of a try writes, as in `print("skipped", error)`."""

    def __str__(self) -> str:
        return f"`{self.text}` in line {self.line}"

    def holds(self, line: CodeLine) -> bool:
        return line.file == self.file and self.first <= line.line <= self.last

    def names(self, ranks: list[int]) -> bool:
        """True if the test is `if rank == 3:` or `if is_main():` and these ranks are the one that it names."""
        if len(ranks) != 1 or self.kind == "else" or "not " in self.text:
            return False
        return f"== {ranks[0]}:" in self.text or (ranks == [0] and bool(_MAIN_TEST.search(self.text)))


def blocks_around(line: CodeLine) -> list[Block]:
    """Return the blocks that hold a line, within its function, outermost first."""
    if not line.file.endswith(".py"):
        return []
    source = source_of(line.file)
    start = max((each.first for each in source.functions if each.first <= line.line <= each.last), default=0)
    return [block for block in source.blocks if block.holds(line) and block.line >= start]


def is_readable(line: CodeLine) -> bool:
    """True if the source of a line is known: the file has the line's function there."""
    if not line.file.endswith(".py") or not source_of(line.file).is_known:
        return False
    around = function_around(source_of(line.file), line.line)
    name = around.name if around is not None else "<module>"
    return name == line.function or (line.function.startswith("<") and line.function != "<module>")


def text_of(line: CodeLine) -> str:
    """Return the text of a line; empty if its file cannot be read."""
    lines = source_of(line.file).lines
    return lines[line.line - 1] if 0 < line.line <= len(lines) else ""


def innermost_loop(line: CodeLine) -> Block | None:
    """Return the innermost loop around a line of a function."""
    loops = [block for block in blocks_around(line) if block.kind == "loop"] if is_readable(line) else []
    return loops[-1] if loops else None


def calling_loops(line: CodeLine) -> list[Block]:
    """Return the innermost loop around a line; without one, the loops around the calls of its function in its file."""
    own, source = innermost_loop(line), source_of(line.file)
    around = [each for each in source.functions if each.first <= line.line <= each.last]
    if own is not None or not around or not line.function.isidentifier():
        return [own] if own is not None else []
    called = re.compile(rf"(?<!def )\b{line.function}\(")
    calls = (number for number, text in enumerate(source.lines, 1) if called.search(text))
    loops = (
        [block for block in blocks_around(CodeLine(file=line.file, line=at)) if block.kind == "loop"] for at in calls
    )
    return list(dict.fromkeys(blocks[-1] for blocks in loops if blocks))


def in_one_loop(one: CodeLine, other: CodeLine) -> bool:
    """True if a loop of a program encloses both lines. False if its source cannot be read."""
    if one.file != other.file:
        return False
    return any(block.kind == "loop" and block.holds(other) for block in blocks_around(one))


def loop_over_a_set(line: CodeLine) -> Block | None:
    """Return the innermost loop around a line if it goes through a set."""
    loop, source = innermost_loop(line), source_of(line.file)
    if loop is None:
        return None
    return loop if loop.over == "{}" or (loop.over in source.sets and loop.over not in source.others) else None


def is_fixed(loop: Block) -> bool:
    """True if a loop has the same number of rounds on all ranks: a range of constants that nothing leaves."""
    source = source_of(loop.file)
    leaves = [jump for jump in source.jumps if jump.loop == loop.line and jump.word != "continue"]
    return loop.line in source.constant_loops and not leaves


def is_left_early(loop: Block) -> bool:
    """True if a statement other than `continue` leaves a loop before its end."""
    return any(jump.loop == loop.line and jump.word not in ("continue", "") for jump in source_of(loop.file).jumps)


def is_each_round(loop: Block, line: CodeLine) -> bool:
    """True if each round of a loop that comes so far runs a line: nothing in the loop can pass it by.

    The line is a statement of the loop's own body, without a condition in it, and no `continue` stands before it.
    """
    source = source_of(loop.file)
    skips = [jump for jump in source.jumps if jump.loop == loop.line and jump.word == "continue"]
    return (loop.line, line.line) in source.plain and not any(jump.line < line.line for jump in skips)


def calls_in_order(line: CodeLine) -> list[str]:
    """Return the names of what a line's statement calls, in the order in which the calls begin."""
    nodes = ast.walk(parsed[0]) if (parsed := parse_file(line.file)) is not None else ()
    around = [
        node for node in nodes if isinstance(node, ast.stmt) and node.lineno <= line.line <= (node.end_lineno or 0)
    ]
    statement = max(around, key=lambda node: node.lineno, default=None)
    return [name for part in (_expressions(statement) if statement else ()) for name in _called_within(part)]


def _called_within(node: ast.AST) -> list[str]:
    inner = [name for child in ast.iter_child_nodes(node) for name in _called_within(child)]
    return [*inner, called_name(node)] if isinstance(node, ast.Call) else inner


_YIELD = re.compile(r"\byield\b")
_ANY_CALL = re.compile(r"\b(\w+)\(")
_COLLECTIVE_CALL = re.compile(r"\b(\w*(?:reduce|gather|scatter|broadcast|barrier|all_to_all)\w*)\(")


def has_counterpart(block: Block) -> bool:
    """True if another test of the rank in the same function guards a call of the same name: the other ranks' own call.

    Then the test does not tell whether all ranks make the call: each has its line for it.
    """
    names = set(_COLLECTIVE_CALL.findall(_text_in(block)))
    return any(names & set(_COLLECTIVE_CALL.findall(_text_in(each))) for each in _other_sides(block))


def called_on_other_sides(block: Block) -> set[str]:
    """Return the names of what other tests of the rank in the same function guard: it may make the same call."""
    return {name for each in _other_sides(block) for name in _ANY_CALL.findall(_text_in(each))}


def _other_sides(block: Block) -> list[Block]:
    """Return what other tests of the rank in the same function guard. The same test again lets the same ranks pass."""
    if not block.tests_rank or block.kind not in ("if", "else"):
        return []
    source = source_of(block.file)
    return [
        each
        for each in source.blocks
        if each.tests_rank
        and each.kind in ("if", "else")
        and (each.last < block.first or block.last < each.first)
        and (each.kind, each.text) != (block.kind, block.text)
        and function_around(source, each.line) == function_around(source, block.line)
    ]


def function_around(source: Source, line: int) -> _Span | None:
    """Return the innermost function that has a line; None for a line of the module."""
    around = [each for each in source.functions if each.first <= line <= each.last]
    return max(around, key=lambda each: each.first, default=None)


def yields(block: Block) -> bool:
    """True if a block gives items to a loop elsewhere, in which a rank then is: a generator waits in its own loop."""
    return bool(_YIELD.search(_text_in(block)))


def _text_in(block: Block) -> str:
    return "\n".join(source_of(block.file).lines[block.first - 1 : block.last])


_SENDS, _RECEIVES = re.compile(r"send\w*\("), re.compile(r"(recv|receive)\w*\(")


def sends_and_receives(line: CodeLine) -> bool:
    """True if the function around a line both sends and receives messages, as a schedule of a pipeline does."""
    if not is_readable(line):
        return False
    source = source_of(line.file)
    function = function_around(source, line.line)
    if function is None:
        return False
    text = "\n".join(source.lines[function.first : function.last])
    return bool(_SENDS.search(text) and _RECEIVES.search(text))


# ---- the blocks of a file --------------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """A function, and its first and last line."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class Jump:
    """A statement that leaves a loop or the rest of a round."""

    word: str
    """break, continue or return; `exit(0)` or the like, which ends the program; empty for a handler of exceptions,
    which passes by the rest of its `try` alone."""
    line: int
    """Its own line; in a handler of exceptions, that of the `try`, since an error may come from any of its lines."""
    test: str
    """The test right around it, such as `if should_stop:`; empty without one."""
    loop: int
    """The line of the loop that it leaves, 0 without one; of a return, each loop around it has one."""
    shown_line: int
    """The line of its test, if it has one."""
    until: int = sys.maxsize
    """The last line that it passes by."""


@dataclass
class Source:
    """What a file contains, in the order of its lines."""

    is_known: bool = False
    lines: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    functions: list[_Span] = field(default_factory=list)
    jumps: list[Jump] = field(default_factory=list)
    returns: list[Jump] = field(default_factory=list)
    """Those right under a test, of any function."""
    plain: set[tuple[int, int]] = field(default_factory=set)
    """Lines of loops, each with a line of its own body that every round runs."""
    makers: set[str] = field(default_factory=set)
    """Functions that run when they are called: no generators."""
    constant_loops: set[int] = field(default_factory=set)
    """Lines of loops over a range of constants."""
    sets: set[str] = field(default_factory=set)
    """Names that are given a set, and names that are given something else."""
    others: set[str] = field(default_factory=set)


@lru_cache(maxsize=64)
def source_of(file: str) -> Source:
    """Return the blocks of a file; none if it cannot be read."""
    found, parsed = Source(), parse_file(file)
    if parsed is None:
        return found
    tree, text = parsed
    try:
        loops = (node for node in ast.walk(tree) if isinstance(node, (ast.For, ast.AsyncFor)))
        counters = set[str]().union(*map(_counters, loops))
        _Reader(file, text.split("\n"), found, counters).read(tree.body, (), _NO_TEST)
    except RecursionError:
        return Source()
    found.blocks.sort(key=lambda block: (block.first, -block.last))
    found.is_known, found.lines = True, text.split("\n")
    return found


def parse_file(path: str) -> tuple[ast.Module, str] | None:
    """Return the syntax tree of a program's file and its text; None if it cannot be read."""
    try:
        text = read_bounded(Path(path), most_bytes=_MOST_BYTES).decode("utf-8", "replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text), text
    except (OSError, FrogError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_NO_TEST = ("", 0)


class _Reader:
    """Collects the blocks of one file."""

    def __init__(self, file: str, lines: list[str], found: Source, counters: set[str]) -> None:
        self._file, self._lines, self._found = file, lines, found
        self._counters = counters
        """Names that count the rounds of a loop of the file, also where they are handed on."""
        self._tries: dict[int, int] = {}
        """The lines of handlers of exceptions, and of the `try` of each."""

    def read(self, body: Sequence[ast.stmt], loops: tuple[int, ...], test: tuple[str, int]) -> None:
        """Read the statements of a body. loops: lines of the loops around it. test: of the branch right around it."""
        for node in body:
            self._read_statement(node, loops, test)

    def _read_statement(self, node: ast.stmt, loops: tuple[int, ...], test: tuple[str, int]) -> None:
        last = node.end_lineno or node.lineno
        self._read_expressions(node)
        if isinstance(node, ast.If):
            self._read_if(node, loops)
        elif isinstance(node, _Loop):
            over = "" if isinstance(node, ast.While) else _name_of(node.iter)
            maker = "" if isinstance(node, ast.While) else called_name(node.iter)
            self._add("loop", self._head(node), node.lineno, node.lineno, last, over=over, function=maker)
            if not isinstance(node, ast.While) and _is_constant_range(node.iter):
                self._found.constant_loops.add(node.lineno)
            for statement in node.body:
                if _has_no_condition(statement):
                    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
                    self._found.plain |= {(node.lineno, line) for line in lines}
            self.read(node.body, (*loops, node.lineno), _NO_TEST)
            self.read(node.orelse, loops, _NO_TEST)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not isinstance(node, ast.ClassDef):
                self._found.functions.append(_Span(node.name, node.lineno, last))
                for decorator in node.decorator_list:
                    if _KEEPS_RESULTS.search(called_name(decorator) or _last_name(decorator)):
                        text = f"@{ast.unparse(decorator)}"[:_MOST_TEST]
                        self._add("cache", text, node.lineno, node.body[0].lineno, last, function=node.name)
                if not any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
                    self._found.makers.add(node.name)
            self.read(node.body, (), _NO_TEST)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            if any(called_name(item.context_expr) == "suppress" for item in node.items):
                self._add("try", self._head(node), node.lineno, node.body[0].lineno, last)
            self.read(node.body, loops, test)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._read_try(node, loops, test)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                head, line = self._lines[case.pattern.lineno - 1].strip()[:_MOST_TEST], case.pattern.lineno
                end = case.body[-1].end_lineno or case.body[-1].lineno
                self._add("if", head, line, case.body[0].lineno, end)
                self.read(case.body, loops, (head, line))
        elif isinstance(node, ast.Assign):
            names = [name for target in node.targets if (name := _full_name(target))]
            (self._found.sets if _is_set(node.value) else self._found.others).update(names)
        elif isinstance(node, (ast.Break, ast.Continue)) and loops:
            word = "break" if isinstance(node, ast.Break) else "continue"
            line = min(node.lineno, self._tries.get(test[1], node.lineno))
            self._found.jumps.append(Jump(word, line, test[0], loops[-1], test[1] or node.lineno))
        elif (exits := _exit_of(node)) and loops:
            self._found.jumps += [Jump(exits, node.lineno, test[0], loop, test[1] or node.lineno) for loop in loops]
        elif isinstance(node, ast.Return):
            if test[0]:
                self._found.returns.append(Jump("return", node.lineno, test[0], 0, test[1]))
            self._found.jumps += [Jump("return", node.lineno, test[0], loop, test[1] or node.lineno) for loop in loops]

    def _read_if(self, node: ast.If, loops: tuple[int, ...]) -> None:
        test = self._text(node.test)
        for kind, words, block in (("if", f"if {test}:", node.body), ("else", f"if {test}: … else:", node.orelse)):
            if block:
                known = bool(test) and len(test) <= _MOST_TEST
                if known:
                    names_rank = bool(RANK_TEST.search(test))
                    last = block[-1].end_lineno or block[-1].lineno
                    counted = not names_rank and _is_counted(node.test, self._counters)
                    self._add(kind, words, node.lineno, block[0].lineno, last, names_rank, is_counted=counted)
                self.read(block, loops, (words, node.lineno) if known else _NO_TEST)

    def _read_try(self, node: ast.stmt, loops: tuple[int, ...], test: tuple[str, int]) -> None:
        assert hasattr(node, "handlers")
        self.read(node.body, loops, test)  # type: ignore[attr-defined]
        for handler in node.handlers:
            head = self._lines[handler.lineno - 1].strip()[:_MOST_TEST]
            first, last = handler.body[0].lineno, handler.end_lineno or handler.lineno
            self._tries[handler.lineno] = node.lineno
            if loops and not isinstance(handler.body[-1], (ast.Raise, ast.Return, ast.Break, ast.Continue)):
                end = node.body[-1].end_lineno or last  # type: ignore[attr-defined]
                self._found.jumps.append(Jump("", node.lineno, head, loops[-1], handler.lineno, end))
            self._add("except", head, handler.lineno, first, last)
            if _goes_on(handler):
                body: Sequence[ast.stmt] = node.body  # type: ignore[attr-defined]
                self._add("try", head, handler.lineno, body[0].lineno, body[-1].end_lineno or first)
                self._found.blocks[-1] = replace(self._found.blocks[-1], says=_words_of(handler))
            self.read(handler.body, loops, (head, handler.lineno))
        self.read(node.orelse, loops, _NO_TEST)  # type: ignore[attr-defined]
        self.read(node.finalbody, loops, test)  # type: ignore[attr-defined]

    def _read_expressions(self, statement: ast.stmt) -> None:
        """Read the loops and conditions inside the expressions of a statement, without those of its body."""
        own = [node for child in _expressions(statement) for node in ast.walk(child)]
        for node in own:
            if isinstance(node, ast.IfExp):
                text = f"… if {ast.unparse(node.test)} else …"
                self._add_part("if", text, node, [node.body], own, node.test)
                self._add_part("else", text, node, [node.orelse], own, node.test)
            elif isinstance(node, ast.BoolOp):
                self._add_part("if", ast.unparse(node), node, node.values[1:], own, node.values[0])
            elif isinstance(node, _Comprehension):
                first = node.generators[0]
                text, over, maker = ast.unparse(first).strip(), _name_of(first.iter), called_name(first.iter)
                last = node.end_lineno or node.lineno
                line = first.target.lineno
                block = Block("loop", text[:_MOST_TEST], line, self._file, node.lineno, last, over=over, function=maker)
                inside = {called_name(call) for call in _calls([node])}
                besides = {called_name(each) for each in own if isinstance(each, ast.Call)} - inside
                self._found.blocks.append(replace(block, besides=frozenset(besides)))
                for only in first.ifs:
                    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                    self._add_part("if", f"if {ast.unparse(only)}", node, parts, own, None)

    def _add_part(
        self,
        kind: str,
        text: str,
        node: ast.expr,
        parts: Sequence[ast.expr],
        own: Sequence[ast.AST],
        test: ast.expr | None,
    ) -> None:
        """Add a part of a line that runs only under a condition, if it calls something.

        own: the nodes of the whole statement.
        """
        inside = {id(call) for call in _calls(parts)}
        if not inside or len(text) > _MOST_TEST:
            return
        besides = frozenset(called_name(each) for each in own if isinstance(each, ast.Call) and id(each) not in inside)
        first = min(part.lineno for part in parts)
        last = max(part.end_lineno or part.lineno for part in parts)
        tested = {called_name(call) for call in _calls([test] if test is not None else [])}
        names_rank = test is not None and bool(RANK_TEST.search(ast.unparse(test)))
        block = Block(kind, text, node.lineno, self._file, first, last, names_rank and besides <= tested)
        self._found.blocks.append(replace(block, is_partial=True, besides=besides))

    def _head(self, node: ast.stmt) -> str:
        return self._lines[node.lineno - 1].strip()[:_MOST_TEST]

    def _text(self, test: ast.expr) -> str:
        """Return the source of a test; empty if it has several lines."""
        if test.lineno != test.end_lineno:
            return ""
        line = self._lines[test.lineno - 1].encode()
        return line[test.col_offset : test.end_col_offset].decode(errors="replace")

    def _add(
        self,
        kind: str,
        text: str,
        line: int,
        first: int,
        last: int,
        tests_rank: bool = False,
        over: str = "",
        function: str = "",
        is_counted: bool = False,
    ) -> None:
        block = Block(kind, text, line, self._file, first, last, tests_rank, over, function, is_counted)
        self._found.blocks.append(block)


_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


_ENDS_PROGRAMS = ("exit", "_exit", "abort", "kill")
_NO_ERRORS = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration")


def _goes_on(handler: ast.ExceptHandler) -> bool:
    """True if a handler of errors neither raises nor ends the program."""
    caught = handler.type if handler.type is not None else ast.Name("BaseException")
    if _last_name(caught) in _NO_ERRORS:
        return False
    ends = [node for node in ast.walk(handler) if isinstance(node, ast.Raise)]
    return not ends and not any(called_name(call) in _ENDS_PROGRAMS for call in _calls(handler.body))


_EXITS = ("exit", "quit", "sys.exit", "os._exit")


def _exit_of(node: ast.stmt) -> str:
    """Return the text of a statement that ends the program, such as `sys.exit(0)`; empty for another one."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        name = called_name(node.exc) or _last_name(node.exc)
        return f"raise {ast.unparse(node.exc)}"[:_MOST_TEST] if name == "SystemExit" else ""
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else node
    return ast.unparse(node)[:_MOST_TEST] if ast.unparse(called) in _EXITS else ""


_GAPS = re.compile(r"%[-+ #0-9.]*[a-z]|\{[^{}]*\}|\n")


_LEAST_WORDS = 6


def _words_of(handler: ast.ExceptHandler) -> tuple[str, ...]:
    """Return the constant words in what a handler writes or logs."""
    texts = [
        node.value
        for call in _calls(handler.body)
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    words = [part.strip() for text in texts for part in _GAPS.split(text)]
    return tuple(part for part in words if len(part) >= _LEAST_WORDS)


def _expressions(statement: ast.stmt) -> list[ast.AST]:
    """Return the expressions of a statement: of one with a body, those of its head."""
    kinds = (ast.expr, ast.keyword, ast.withitem)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return []
    return [child for child in ast.iter_child_nodes(statement) if isinstance(child, kinds)]


def _calls(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    return [call for node in nodes for call in ast.walk(node) if isinstance(call, ast.Call)]


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _counters(loop: ast.For | ast.AsyncFor) -> set[str]:
    """Return the name that counts the rounds of a loop over a range or an enumeration."""
    called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    if not isinstance(called, ast.Name) or called.id not in ("range", "trange", "enumerate"):
        return set()
    target = loop.target
    if called.id == "enumerate" and isinstance(target, ast.Tuple) and target.elts:
        target = target.elts[0]
    return {target.id} if isinstance(target, ast.Name) else set()


def _is_counted(test: ast.expr, counters: set[str]) -> bool:
    """True if a test is about a counter and constants or settings, so that ranks in one round agree on it."""
    nodes = list(ast.walk(test))
    if any(isinstance(node, (ast.Call, ast.Subscript, ast.NamedExpr)) for node in nodes):
        return False
    settings = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    names = [node for node in nodes if isinstance(node, ast.Name) and id(node) not in settings]
    return any(node.id in counters for node in names) and all(
        node.id in counters or node.id.isupper() for node in names
    )


def _is_constant_range(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and called_name(node) in ("range", "trange")
        and all(isinstance(argument, ast.Constant) for argument in node.args)
    )


def called_name(node: ast.expr) -> str:
    """Return the last name of the function of a call, such as `barrier` of `dist.barrier()`; empty without one."""
    called = node.func if isinstance(node, ast.Call) else None
    return called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""


def _is_set(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return is_call or isinstance(node, (ast.Set, ast.SetComp))


def _name_of(node: ast.expr) -> str:
    """Return the name that a loop goes through; "{}" if that is a set, empty if it is something else."""
    return "{}" if _is_set(node) else _full_name(node)


def _full_name(node: ast.expr) -> str:
    """Return a name, or that of an attribute of one, such as `self.pending`; empty for another expression."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _has_no_condition(node: ast.stmt) -> bool:
    """True if a statement of a body runs as a whole whenever the body comes to it."""
    if not isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return False
    conditions = (ast.IfExp, ast.BoolOp, ast.comprehension, ast.Lambda)
    return not any(isinstance(child, conditions) for child in ast.walk(node))

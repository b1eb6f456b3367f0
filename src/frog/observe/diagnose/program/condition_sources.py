"""What the condition of a branch or a loop depends on: the rank, a file, a clock, random numbers, free memory, data.

Follows the names of a test back through the assignments, parameters and functions of the program's files. Where it
finds none of these, nothing is known: a name may come from a library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from frog.core.runs.observed import CodeLine
from frog.core.schema import shortened
from frog.observe.diagnose.program.assigned_values import ProgramFile, Value
from frog.observe.diagnose.program.code_blocks import RANK_TEST, Block, blocks_around, called_name
from frog.observe.diagnose.program.code_partings import Parting, exits_of
from frog.observe.diagnose.program.evidence import place

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


def source_words(block: Block) -> str:
    """Return where the values of a block's test come from, with `; ` in front; empty if that is not known.

    A test with a rank in its text says so itself.
    """
    if block.kind not in ("if", "else", "return", "loop") or RANK_TEST.search(block.text):
        return ""
    try:
        return _words(block)
    except RecursionError:  # a sum of thousands of terms
        return ""


def callee_sources(line: CodeLine) -> str:
    """Return what decides which functions a line calls, with `; ` in front; empty if that is not known."""
    file = ProgramFile.of(line.file)
    calls = [call for same_name in file.calls.values() for call in same_name if call.lineno == line.line]
    try:
        kinds = [
            kind
            for call in calls
            for value in _reached(Value(file, call.func, line.line))
            for kind in _kinds_of(value.node)
        ]
    except RecursionError:
        return ""
    others = list(dict.fromkeys(kind for kind in kinds if kind != _RANK))[:2]
    if not kinds:
        return ""
    return (
        f"; what it calls depends on {' and '.join(others) + ', which may differ between ranks' if others else _RANK}"
    )


def sources_of_loop(parting: Parting, inside: Sequence[CodeLine]) -> str:
    """Return the same for a loop that one rank has left, and for the tests by which a rank leaves it.

    inside: the lines that led to the call of the rank that is in the loop, innermost first.
    """
    if not parting.was_common:
        return ""
    loops = [parting.block, *parting.around]
    exits = [exit_ for loop in loops for exit_ in exits_of(loop, inside)]
    return "".join(dict.fromkeys(map(source_words, [*loops, *exits])))


def _words(block: Block) -> str:
    file = ProgramFile.of(block.file)
    test = file.tests.get(block.line)
    if test is None:
        return ""
    first = _first_step(file, test, block) if block.kind != "loop" else _filled_under(file, test, block.line)
    places: dict[str, str] = {}
    for value in _reached(Value(file, test, test.lineno)):
        for source in _kinds_of(value.node):
            places.setdefault(source, "" if value.file is file else f" ({_place(value)})")
    others = [f"{source}{at}" for source, at in places.items() if source != _RANK][:2]
    what = f"{' and '.join(others)}, which may differ between ranks" if others else _RANK
    depends = (
        f"the {'loop' if block.kind == 'loop' else 'test'} in line {block.line} depends on {what}" if places else ""
    )
    return "".join(f"; {words}" for words in (first, depends) if words)


def _place(value: Value) -> str:
    """Return where a value is, such as `flags.py:12`."""
    return place(CodeLine(file=value.file.path, line=value.line))


def _first_step(file: ProgramFile, test: ast.expr, block: Block) -> str:
    """Return the assignment of a test that is a name alone, as of a flag."""
    name = test.operand if isinstance(test, ast.UnaryOp) else test
    if not isinstance(name, (ast.Name, ast.Attribute)):
        return ""
    text = ast.unparse(name)
    values = file.values_of(text, block.line)
    if values and all(isinstance(value.node, ast.Constant) for value in values):
        under = _set_under(values)
        return f"`{text}` is set in line {under[0]}, under {under[1]}" if under is not None else ""
    values = [value for value in values if not isinstance(value.node, ast.Constant)]
    if len(values) != 1 or (values[0].file is file and values[0].line == block.line):
        return ""
    if (expression := ast.unparse(values[0].node)) == text:
        return ""
    at = f"line {values[0].line}" if values[0].file is file else _place(values[0])
    return f"`{text}` is `{shortened(expression, _MOST_TEXT)}` of {at}"


_FILLS = ("append", "extend", "add", "insert", "update", "setdefault")


def _filled_under(file: ProgramFile, test: ast.expr, line: int) -> str:
    """Return the test under which what a loop goes through gets an item, or by which it leaves items out."""
    waiting, seen = [Value(file, test, line)], set[int]()
    while waiting and len(seen) < _MOST_STEPS:
        value = waiting.pop(0)
        if id(value.node) in seen:
            continue
        seen.add(id(value.node))
        if isinstance(value.node, ast.ListComp) and (tests := value.node.generators[0].ifs):
            return (
                f"it goes through what passes `if {shortened(ast.unparse(tests[0]), _MOST_TEXT)}` in line {value.line}"
            )
        names = [node for node in ast.walk(value.node) if isinstance(node, (ast.Name, ast.Attribute))]
        for name in map(ast.unparse, names):
            if (under := _item_added_under(value.file, name, value.line)) is not None:
                return f"`{name}` gets an item in line {under[0]}, under {under[1]}"
            waiting += value.file.values_of(name, value.line)
    return ""


def _item_added_under(file: ProgramFile, name: str, line: int) -> tuple[int, Block] | None:
    """Return the line that adds to a container under a test, and the test."""
    calls = [call for method in _FILLS for call in file.calls.get(method, [])]
    own = [call for call in calls if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == name]
    if "." not in name:
        own = [call for call in own if file.function_at(call.lineno) is file.function_at(line)]
    for call in own:
        tests = [each for each in blocks_around(CodeLine(file=file.path, line=call.lineno)) if each.kind in _TESTS]
        if tests:
            return call.lineno, tests[-1]
    return None


def _set_under(values: list[Value]) -> tuple[int, Block] | None:
    """Return the line and the test under which a flag is set, if there is one such test."""
    lines = dict.fromkeys((value.file.path, value.line) for value in values)
    around = {line: blocks_around(CodeLine(file=path, line=line)) for path, line in lines}
    tests = {line: block for line, blocks in around.items() for block in blocks if block.kind in _TESTS}
    return next(iter(tests.items())) if len(tests) == 1 else None


def _reached(test: Value) -> Iterator[Value]:
    """Yield the parts of a test, then those of the values of its names, and so on; of a flag, those of its test.

    A value that a collective has made equal on all ranks leads no further.
    """
    waiting, seen = [test], set[int]()
    while waiting and len(seen) < _MOST_STEPS:
        value = waiting.pop(0)
        if id(value.node) in seen:
            continue
        seen.add(id(value.node))
        for node in _own_parts(value):
            yield Value(value.file, node, getattr(node, "lineno", value.line))
            if isinstance(node, (ast.Name, ast.Attribute)):
                values = value.file.values_of(ast.unparse(node), value.line)
                waiting += values
                under = _set_under([each for each in values if isinstance(each.node, ast.Constant)])
                of_flag = ProgramFile.of(under[1].file).tests.get(under[1].line) if under is not None else None
                if under is not None and of_flag is not None:
                    waiting.append(Value(ProgramFile.of(under[1].file), of_flag, of_flag.lineno))
            if isinstance(node, ast.Call):
                waiting += value.file.results_of(node, value.line)


def _own_parts(value: Value) -> Iterator[ast.expr]:
    """Yield the expressions of a value, without those of a tensor that a collective before it has made equal."""
    waiting: list[ast.AST] = [value.node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = ast.unparse(node.func.value)
        else:
            owner = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        if owner and value.file.is_made_equal(owner, value.line):
            continue
        if isinstance(node, ast.expr):
            yield node
        waiting += reversed(list(ast.iter_child_nodes(node)))


def _kinds_of(node: ast.expr) -> Iterator[str]:
    """Yield what a call or a name reads that may differ between ranks."""
    name = called_name(node) if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Attribute) and node.attr == "environ":
        name = node.attr
    if isinstance(node, ast.Name) and node.id in ("rank", "local_rank", "RANK", "LOCAL_RANK", "global_rank"):
        name = "get_rank"
    yield from (words for words, pattern in _PATTERNS if name and pattern.search(name))

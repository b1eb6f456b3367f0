"""Lines of code in other tools' output: which are the user's, stacks of them, and the conditions around a line."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath

from frog.core.errors import FrogError
from frog.core.runs.observed import CodeLine
from frog.core.schema import read_bounded
from frog.observe.diagnose.program.evidence import Call, Evidence

_INSTALLED = re.compile(
    r"[/\\](site-packages|dist-packages)[/\\]|[/\\]lib(64)?[/\\]python\d[\d.]*[/\\]|^<(?!stdin>|string>)|"
    r"[/\\]bin[/\\](torchrun|accelerate|deepspeed)$|\.(cpp|cc|cu|h|hpp|so)$|^\?\?$|frog[/\\]observe[/\\]hook[/\\]"
)
"""Paths of the standard library, of installed packages and of C++ code."""


def is_user_file(path: str) -> bool:
    """True for a file that is not part of Python, an installed package, or compiled code."""
    return bool(path) and not _INSTALLED.search(path)


def collective_frames(frames: Iterable[CodeLine]) -> list[CodeLine]:
    """Return the frames inside torch.distributed's own functions, such as `all_reduce`, in the same order."""
    return [frame for frame in frames if frame.file.endswith("distributed_c10d.py")]


def user_line(innermost_first: Iterable[CodeLine]) -> CodeLine | None:
    """Return the innermost line in the user's code."""
    return next((frame for frame in innermost_first if is_user_file(frame.file)), None)


# ---- stacks as text, innermost first: of `py-spy dump`, and of faulthandler after a fatal signal ---------------------

_PY_SPY_PROCESS = re.compile(r"^Process (\d{1,10}): (.{0,2000})$", re.MULTILINE)
_PY_SPY_THREAD = re.compile(r'^Thread (\S{1,40}) \(([\w+]{1,20})\)(?:: "(.{0,200})")?$')
_PY_SPY_FRAME = re.compile(r"^\s+(.{1,300}?) \((.{1,1000}):(\d{1,9})\)$")
_FAULT_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}.{0,80}\(most recent call first\):", re.MULTILINE
)
_FAULT_FRAME = re.compile(r'^\s+File "(.{1,1000})", line (\d{1,9}) in (.{1,300})$', re.MULTILINE)
_PACKAGES = ("torch", "numpy", "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning")
_MOST_FRAMES = 200


def is_stack_dump(text: str) -> bool:
    """True for the output of `py-spy dump`."""
    return bool(_PY_SPY_PROCESS.search(text[:20_000])) and "\nThread " in text


def add_stacks(evidence: Evidence, text: str, name: str, rank_of_file: int | None) -> bool:
    """Add the main thread's stack to a rank; return False if the file's name does not tell which."""
    if rank_of_file is None:
        evidence.problems.append(f"{name}: a py-spy dump, but its name has no rank: rename it to …_rank_N.txt")
        return False
    rank, frames, state = evidence.of(rank_of_file), *_main_thread(text)
    rank.add_source(name)
    rank.stack = rank.stack or frames
    rank.line = rank.line or next((frame for frame in frames if _is_users(frame.file)), None)
    rank.state = rank.state or "running"
    if rank.cpu_busy is None and state and not collective_frames(frames):  # NCCL spins in a collective
        rank.cpu_busy = state.startswith("active")
    return True


def _main_thread(text: str) -> tuple[list[CodeLine], str]:
    """Return the frames of the main thread, the first if none has that name, and its state."""
    threads: list[tuple[str, str, list[CodeLine]]] = []
    for line in text.split("\n")[:100_000]:
        if found := _PY_SPY_THREAD.match(line):
            threads.append((found[3] or "", found[2], []))
        elif threads and (frame := _PY_SPY_FRAME.match(line)) and len(threads[-1][2]) < _MOST_FRAMES:
            threads[-1][2].append(CodeLine(file=frame[2], line=int(frame[3]), function=frame[1]))
    main = next((thread for thread in threads if thread[0] == "MainThread"), threads[0] if threads else ("", "", []))
    return main[2], main[1]


def _is_users(file: str) -> bool:
    """True for the user's own file. py-spy cuts off the folders of the search path, as in `torch/nn/functional.py`."""
    first = re.split(r"[/\\]", file)[0].removesuffix(".py")
    return is_user_file(file) and first not in _PACKAGES and first not in sys.stdlib_module_names


def fault_frames(text: str) -> list[CodeLine]:
    """Return the main thread's frames from faulthandler's output, which lists it last; empty if there is none."""
    threads = _FAULT_THREAD.split(text[-200_000:])[1:]
    found = _FAULT_FRAME.findall(threads[-1])[:_MOST_FRAMES] if threads else []
    return [CodeLine(file=file, line=int(line), function=function) for file, line, function in found]


# ---- the conditions around a line, from its source: does a test of the rank guard it? --------------------------------

_MOST_BYTES, _MOST_TEST = 2 << 20, 200
_RANK_TEST = re.compile(
    r"\b\w*(rank|is_main|is_master|master_process|main_process|is_first|is_last|is_chief|is_leader|process_zero|process_index)\w*\b",
    re.IGNORECASE,
)
_MAIN_TEST = re.compile(r"is_main|is_master|master_process|main_process|is_first|is_chief|is_leader|process_zero")


def rank_branch(line: CodeLine | None) -> str | None:
    """Return `if rank == 0:` (line 12) if a test of the rank encloses a line of a program, else None.

    Reads the current file, which may have changed since the program ran.
    """
    branch = _enclosing_branch(line)
    return branch.text if branch is not None else None


def call_branch(call: Call, callers: Iterable[int], others: list[Call]) -> str | None:
    """Return the test of the rank that encloses a call, or a line that led to it.

    callers: the ranks that made it. others: all calls of the ranks that did not. A test around an outer line counts
    only if no call of theirs came from its block; if their records have no stacks, only if it names the one caller.
    """
    if (text := rank_branch(call.line)) is not None:
        return text
    came = [frame for other in others for frame in other.callers]
    for frame in call.callers:
        branch = _enclosing_branch(frame)
        if branch is None or any(branch.encloses(each) for each in came):
            continue
        if came or branch.names(list(callers)):
            return f"{branch.text} of {PurePath(frame.file).name}"
    return None


@dataclass(frozen=True)
class _Branch:
    """A block that a test of the rank guards."""

    text: str
    file: str
    first: int
    last: int

    def names(self, ranks: list[int]) -> bool:
        """True if the test is `if rank == 3:` or `if is_main():` and these ranks are the one that it names."""
        if len(ranks) != 1 or "else:" in self.text or "not " in self.text:
            return False
        return f"== {ranks[0]}:" in self.text or (ranks == [0] and bool(_MAIN_TEST.search(self.text)))

    def encloses(self, line: CodeLine) -> bool:
        return line.file == self.file and self.first <= line.line <= self.last


def _enclosing_branch(line: CodeLine | None) -> _Branch | None:
    """Return the innermost block around a line that a test of the rank guards."""
    if line is None or not line.file.endswith(".py"):
        return None
    found = None
    for test, start, first, last in _blocks(line.file).branches:
        if first <= line.line <= last:
            found = _Branch(f"`{test}` in line {start}", line.file, first, last)
    return found


def in_one_loop(one: CodeLine, other: CodeLine) -> bool:
    """True if a loop of a program encloses both lines. False if its source cannot be read."""
    if one.file != other.file or not one.file.endswith(".py"):
        return False
    return any(
        first <= min(one.line, other.line) and max(one.line, other.line) <= last
        for first, last in _blocks(one.file).loops
    )


@dataclass
class _Blocks:
    """The blocks of a file that matter here."""

    branches: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Tests of the rank: their text, their line, and the first and last line that they guard."""
    loops: list[tuple[int, int]] = field(default_factory=list)
    """The first and last line of each loop."""


@lru_cache(maxsize=64)
def _blocks(file: str) -> _Blocks:
    """Return the blocks of a file; none if it cannot be read."""
    found = _Blocks()
    try:
        text = read_bounded(Path(file), most_bytes=_MOST_BYTES).decode("utf-8", "replace")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, FrogError, SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    lines = text.split("\n")
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            _add_tests(found, node, lines)
        elif isinstance(node, (ast.For, ast.While, ast.AsyncFor)):
            found.loops.append((node.lineno, node.end_lineno or node.lineno))
    found.branches.sort(key=lambda each: each[2])
    return found


def _add_tests(found: _Blocks, node: ast.If, lines: list[str]) -> None:
    if node.test.lineno != node.test.end_lineno:
        return
    test = (
        lines[node.test.lineno - 1].encode()[node.test.col_offset : node.test.end_col_offset].decode(errors="replace")
    )
    if not _RANK_TEST.search(test) or len(test) > _MOST_TEST:
        return
    for words, block in ((f"if {test}:", node.body), (f"if {test}: … else:", node.orelse)):
        if block:
            found.branches.append((words, node.lineno, block[0].lineno, block[-1].end_lineno or block[-1].lineno))

"""How a call came about that the program's own order does not contain: by a thread, a freed object, a signal, the exit.

Ranks come to such a call at different moments, though all of them run the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import source_of, text_of
from frog.observe.diagnose.program.code_partings import stack_of
from frog.observe.diagnose.program.evidence import Call, at_place

_MOST_FRAMES = 8
"""Frames of the user's code that the observer records; a stack with as many may lack its outermost ones."""
_STARTS_THREAD = (
    r"\btarget=(\w+\.)*{0}\b|\b(submit|apply_async|to_thread|run_in_executor|Timer|start_new_thread)\([^)]*\b{0}\b"
)
"""How a thread is given its function. A hook of a gradient may run in a thread of torch's, which is none of these."""
_ONE_ORDER = "all ranks must call the collectives of a group in one order"


@dataclass(frozen=True)
class Origin:
    """What called the function that led to a collective, if no line of the program did."""

    kind: str
    """thread, freed, signal or exit."""
    function: str
    at: CodeLine | None = None
    """The line of the program at which it came, if it interrupted one."""

    def __str__(self) -> str:
        if self.kind == "thread":
            return (
                f"in a thread of its own, which runs {self.function}, and its other threads call collectives of this "
                "group, too: nothing orders the calls of two threads, so each rank has another order"
            )
        if self.kind == "freed":
            return (
                f"in {self.function}, when an object was freed{at_place(self.at)}: that is when its last reference "
                "goes, or when garbage is collected, which differs from rank to rank"
            )
        if self.kind == "signal":
            return (
                f"in {self.function}, which handles a signal that came{at_place(self.at)}: a signal reaches each rank "
                "at another line, or one rank alone"
            )
        return f"in {self.function}, which runs at the exit of the process: the other ranks had not ended"

    @property
    def advice(self) -> str:
        """What to change."""
        return {
            "thread": f"{_ONE_ORDER}: give the thread a group of its own (new_group, called by all ranks before the "
            "thread starts), or join the thread before the next collective",
            "freed": f"{_ONE_ORDER}: communicate in a method such as close(), which all ranks call at the same place, "
            "and not in __del__ or a finalizer",
            "signal": "let the handler only set a flag, and let all ranks agree on it once in a step, for example by "
            "an all-reduce (MAX)",
            "exit": f"{_ONE_ORDER}: communicate before the end of the program, where all ranks come, and not in atexit",
        }[self.kind]


def origin_of(call: Call, calls: Iterable[Call]) -> Origin | None:
    """Return what led to a call, if that is not a line of the program. calls: of the same rank."""
    return _interrupts(stack_of(call)) or _runs_beside(call, calls)


def _interrupts(stack: tuple[CodeLine, ...]) -> Origin | None:
    """Find a function that Python calls between two lines of others: of a freed object, or of a signal."""
    for number, frame in enumerate(stack):
        at = stack[number + 1] if number + 1 < len(stack) else None
        if frame.function == "__del__":
            return Origin("freed", frame.function, at)
        if at is None or not frame.function.isidentifier() or frame.function in text_of(at):
            continue
        if _mentions(frame.file, rf"\bfinalize\([^)]*\b{frame.function}\b"):
            return Origin("freed", frame.function, at)
        if _mentions(frame.file, rf"\bsignal\.signal\([^)]*\b{frame.function}\b"):
            return Origin("signal", frame.function, at)
    return None


def _runs_beside(call: Call, calls: Iterable[Call]) -> Origin | None:
    """Find a call whose outermost function is not that of the program, while other calls come from the program."""
    root = _root(call)
    if root is None or root[1] == "<module>" or not root[1].isidentifier():
        return None
    if not any((_root(each) or root)[1] == "<module>" for each in calls if each.group == call.group):
        return None
    file, name = root
    if _mentions(file, rf"\batexit\.register\([^)]*\b{name}\b"):
        return Origin("exit", name)
    return Origin("thread", name) if _mentions(file, _STARTS_THREAD.format(name)) else None


def _root(call: Call) -> tuple[str, str] | None:
    """Return the file and the function of the outermost line that led to a call; None if it is unknown."""
    if not call.callers or len(call.callers) >= _MOST_FRAMES:
        return None
    return call.callers[-1].file, call.callers[-1].function


def _mentions(file: str, pattern: str) -> bool:
    """True if a line of a file has a pattern. A function that another file registers is not found."""
    regex = re.compile(pattern)
    return any(regex.search(line) for line in source_of(file).lines)

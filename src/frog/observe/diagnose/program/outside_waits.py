"""What a rank waits for outside of torch.distributed: a child process, a thread, a lock, a queue, a key of a store.

The frames of Python's own library tell, or else the text of the line, since a call into compiled code has no frame.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.code_blocks import (
    Block,
    blocks_around,
    innermost_loop,
    is_readable,
    parse_file,
    text_of,
)
from frog.observe.diagnose.program.code_lines import is_user_file
from frog.observe.diagnose.program.evidence import RankEvidence

_MOST_CODE = 80


class _Wait(NamedTuple):
    """A kind of wait: how it is recognized, what it is for, and what to look at."""

    pattern: re.Pattern[str]
    words: str
    advice: str


_QUEUE = (
    "for an item of a queue",
    "the thread or process that fills the queue has ended, or waits itself: look at its stack and its log",
)
_THREAD = ("for a thread to end", "look at what that thread waits for: py-spy dump --pid PID shows all threads")
_CHILD = (
    "for a child process to end",
    "a child process that has put results into a queue ends only once they have been read: read the queue before "
    "join(); otherwise look at what the child waits for",
)
_PROGRAM = (
    "for a program that it started",
    "look at what that program waits for: its input, a pipe that nobody reads (communicate() reads it), the network; "
    "give it a timeout",
)
_LOCK = (
    "for a lock",
    "look for who holds the lock: an acquire without a release, a rank that keeps it during a collective, a process "
    "that was forked while a thread held it, a lock file of an earlier run",
)
_ANSWER = (
    "for an answer over the network",
    "give the request a timeout, and let all ranks agree what to do if it fails",
)
_OUTPUT = (
    "for output of a program that it started, or for the end of a line of it",
    "readline() waits for a newline, also if select() says that there is something to read: read what there is "
    "(os.read, read1), give the wait a timeout, or let a thread read",
)
_TERMINAL = ("for input from a terminal", "remove the breakpoint or the question: ranks have no terminal")

_BY_FRAME = (
    _Wait(re.compile(r"multiprocessing/(popen_\w+|process)\.py:(wait|poll|join|_send_signal)$"), *_CHILD),
    _Wait(re.compile(r"/subprocess\.py:\w+$"), *_PROGRAM),
    _Wait(
        re.compile(r"concurrent/futures/(_base|thread|process)\.py:(result|exception|shutdown)$"),
        "for the result of a task in a pool of threads or processes",
        "look at what the pool's workers wait for: a task that waits for another task of a full pool never ends",
    ),
    _Wait(re.compile(r"multiprocessing/pool\.py:(get|wait|join)$"), *_CHILD),
    _Wait(
        re.compile(r"(queue|multiprocessing/queues)\.py:put$"),
        "for room in a queue",
        "the thread or process that empties the queue has ended, or waits itself: look at its stack and its log",
    ),
    _Wait(re.compile(r"(queue|multiprocessing/(queues|connection))\.py:(get|recv|recv_bytes|poll|wait)$"), *_QUEUE),
    _Wait(re.compile(r"/threading\.py:(join|_wait_for_tstate_lock)$"), *_THREAD),
    _Wait(
        re.compile(r"/threading\.py:wait$"),
        "for an event or a condition, which another thread of this rank must set",
        "look for the thread that should set it: it has ended, or waits itself",
    ),
    _Wait(re.compile(r"/(socket|ssl|urllib/request|http/client)\.py:\w+$"), *_ANSWER),
    _Wait(re.compile(r"/(pdb|bdb|cmd)\.py:\w+$"), *_TERMINAL),
)
"""By frames as `threading.py:wait`. A wait for a queue also waits for a condition: the first pattern counts."""

_STORE = (
    "for a key of the store",
    "every key for which a rank waits must be set by another one: compare the names, and look for a condition under "
    "which a rank does not set its key",
)
_BY_TEXT = (
    _Wait(re.compile(r"store\w*(\(\))?\.(get|wait|multi_get|queue_pop)\(", re.IGNORECASE), *_STORE),
    _Wait(re.compile(r"\b(flock|lockf)\(|\.acquire\(|^with [^:]*lock\b", re.IGNORECASE), *_LOCK),
    _Wait(re.compile(r"\b(input|breakpoint|set_trace)\("), *_TERMINAL),
    _Wait(re.compile(r"thread\w*\.join\(", re.IGNORECASE), *_THREAD),
    _Wait(re.compile(r"proc\w*\.(join|wait|communicate)\(|child\w*\.join\(", re.IGNORECASE), *_CHILD),
    _Wait(re.compile(r"\bqueue\w*\.get\(", re.IGNORECASE), *_QUEUE),
    _Wait(re.compile(r"\.readlines?\(|\b(stdout|stderr|pipe)\w*\.read\(|\bin [\w.]*\.(stdout|stderr)\b"), *_OUTPUT),
    _Wait(re.compile(r"(sock|conn)\w*\.(recv\w*|accept|connect)\(", re.IGNORECASE), *_ANSWER),
)
_SETS_KEY = re.compile(r"store\w*(\(\))?\.(set|add|compare_set|queue_push|append)\(", re.IGNORECASE)
_MOST_SETTERS = 3
_SLEEPS = re.compile(r"\bsleep\(")
_LOADER = re.compile(r"torch/utils/data/dataloader\.py$")


def waits_outside(rank: RankEvidence) -> str:
    """Return words on what a rank waits for, with `: it waits` in front; empty if nothing tells."""
    code = _code_of(rank.line)
    shown = f" (`{code}`)" if code else ""
    kind = _kind_of(rank)
    if kind is not None:
        sets = _setters(rank.line) if kind.words == _STORE[0] and rank.line is not None else ""
        return f": it waits {kind.words}{shown}{f'; keys are set {sets}' if sets else ''}"
    loop = polling_loop(rank) or (innermost_loop(rank.line) if rank.line is not None else None)
    if loop is not None and loop.text.startswith("while "):
        return f": it repeats the loop {loop}{shown}"
    return f": its line is `{code}`" if code and not _in_loader(rank) else ""


def polling_loop(rank: RankEvidence) -> Block | None:
    """Return the loop in which a rank looks for something again and again and sleeps in between; None without one.

    A rank that used a core counts only if it was seen to sleep there: its loop may as well do its work.
    """
    own = [frame for frame in rank.stack if is_user_file(frame.file)]
    for frame in own or ([rank.line] if rank.line is not None else []):
        loops = (
            [block for block in blocks_around(frame) if block.text.startswith("while ")] if is_readable(frame) else []
        )
        for loop in reversed(loops):
            lines = (CodeLine(file=loop.file, line=number) for number in range(loop.first, loop.last + 1))
            sleeps = [line for line in lines if _SLEEPS.search(text_of(line))]
            if sleeps and (rank.cpu_busy is False or any(_is_seen_at(rank, line) for line in sleeps)):
                return loop
    return None


def _is_seen_at(rank: RankEvidence, line: CodeLine) -> bool:
    """True if a rank was last seen at a line, or most often."""
    last = rank.line is not None and (rank.line.file, rank.line.line) == (line.file, line.line)
    return last or rank.often == f"{PurePath(line.file).name}:{line.line}"


def advice_on_wait(rank: RankEvidence) -> str:
    """Return what to look at if the kind of a rank's wait is known; else empty."""
    kind = _kind_of(rank)
    return kind.advice if kind is not None else ""


def _kind_of(rank: RankEvidence) -> _Wait | None:
    if _in_loader(rank):  # it waits for a queue, too: see describe_workers
        return None
    frames = [f"{frame.file}:{frame.function}".replace("\\", "/") for frame in _inside(rank)]
    by_frame = next((kind for kind in _BY_FRAME if any(kind.pattern.search(frame) for frame in frames)), None)
    code = _code_of(rank.line)
    return by_frame or next((kind for kind in _BY_TEXT if kind.pattern.search(code)), None)


def _inside(rank: RankEvidence) -> list[CodeLine]:
    """Return the frames inside of the user's line, innermost first."""
    until = next((number for number, frame in enumerate(rank.stack) if is_user_file(frame.file)), len(rank.stack))
    return rank.stack[:until]


def _in_loader(rank: RankEvidence) -> bool:
    return any(_LOADER.search(frame.file.replace("\\", "/")) for frame in rank.stack)


def _code_of(line: CodeLine | None) -> str:
    """Return the text of a line, if it is known."""
    if line is None:
        return ""
    text = (line.code or (text_of(line) if is_readable(line) else "")).strip()
    return text if len(text) <= _MOST_CODE else f"{text[: _MOST_CODE - 1]}…"


def _setters(line: CodeLine) -> str:
    """Return the lines of a program's file that set keys of a store, with the test around each; empty without any."""
    parsed = parse_file(line.file) if is_readable(line) else None
    setters = []
    for number, text in enumerate(parsed[1].split("\n") if parsed is not None else [], 1):
        if _SETS_KEY.search(text):
            blocks = reversed(blocks_around(CodeLine(file=line.file, line=number)))
            test = next((block for block in blocks if block.kind in ("if", "else", "except")), None)
            setters.append(f"in line {number}" + (f", under {test}" if test is not None else ""))
    return " and ".join(setters[:_MOST_SETTERS])

"""Lines of code in other tools' output: which are the user's, and stacks of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from frog.core.runs.observed import CodeLine
from frog.observe.diagnose.program.evidence import Evidence

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
        if heading := _PY_SPY_THREAD.match(line):
            threads.append((heading[3] or "", heading[2], []))
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
    frames = _FAULT_FRAME.findall(threads[-1])[:_MOST_FRAMES] if threads else []
    return [CodeLine(file=file, line=int(line), function=function) for file, line, function in frames]

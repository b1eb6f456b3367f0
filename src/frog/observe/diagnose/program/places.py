"""Lines of code in other tools' output: which of them belong to the user."""

from __future__ import annotations

import re
from collections.abc import Iterable

from frog.core.runs.observed import CodeLine

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

"""Calls that have no effect on a CPU, and calls that are refused."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from . import settings

_ignored: Counter[str] = Counter()
_remarks: dict[str, None] = {}


def without_effect(name: str, result: Any = None) -> Callable[..., Any]:
    """Return a function that only counts its calls, under a name for the list at the end of the rank."""

    def call(*args: Any, **kwargs: Any) -> Any:
        _ignored[name] += 1
        return result

    call.__name__ = name.rpartition(".")[2]
    call.__doc__ = f"Do nothing: {name} has no effect with simulated GPUs."
    return call


def refused(name: str, instead: str = "") -> Callable[..., NoReturn]:
    """Return a function that raises an error with the name of what cannot be simulated."""

    def call(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{name} is not simulated: it needs a real GPU" + (f"\n  try: {instead}" if instead else ""))

    call.__name__ = name.rpartition(".")[2]
    call.__doc__ = f"Refuse {name}, which needs a real GPU."
    return call


def refused_class(name: str, instead: str = "") -> type:
    """Return a class that cannot be instantiated, for a class that cannot be simulated."""
    call = refused(name, instead)
    return type(name.rpartition(".")[2], (), {"__new__": call, "__module__": name.rpartition(".")[0]})


def count_ignored(name: str) -> None:
    """Count a call, or an argument, that has no effect."""
    _ignored[name] += 1


def remark(text: str) -> None:
    """Add a line to the list at the end of the rank, once."""
    _remarks[text] = None


def summary(ignored: Counter[str], remarks: list[str]) -> list[str]:
    """Return the lines that rank 0 prints at the end."""
    lines = [f"simulated GPUs: {text}" for text in remarks]
    if ignored:
        calls = sum(ignored.values())
        names = ", ".join(name for name, _ in ignored.most_common())
        lines.append(f"simulated GPUs: {calls} call{'s' * (calls != 1)} had no effect: {names}")
    return lines


def _rank() -> int:
    """Return the rank that the program itself has chosen, as programs with their own launcher do, or the launcher's."""
    return _last_rank[0] if _last_rank else settings.rank()


_last_rank: list[int] = []


def note_rank(rank: int) -> None:
    """Remember this process's rank, which is unknown after the program has left the world."""
    _last_rank[:] = [rank]


@functools.lru_cache(maxsize=1)
def print_at_exit() -> None:
    """Print the list when the rank ends; only rank 0 does, so that a world prints it once."""
    own = os.getpid()

    def report() -> None:
        if os.getpid() != own or _rank() != 0:  # a forked child, or another rank
            return
        for line in summary(_ignored, list(_remarks)):
            print(line, file=sys.stderr, flush=True)

    atexit.register(report)

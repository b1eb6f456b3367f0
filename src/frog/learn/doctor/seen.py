"""What a probe has seen, and how it says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from frog.core.errors import FrogError
from frog.core.schema import Typed, decode

SCRATCH = ".frog-doctor-"
"""How folders begin that a probe makes where it is to see whether it can; who ends a probe removes what it leaves."""
_MARK = "frog-doctor: "


class Seen(Typed, kw_only=True, frozen=True):
    """One thing that was tried, by the name that it has in `needs.py`."""

    name: str
    ok: bool
    text: str
    """A version, a size, an error: for people."""


def report(name: str, ok: bool, text: str) -> None:
    """Say it at once, in a line of its own: what follows may hang or crash."""
    line = msgspec.json.encode(Seen(name=name, ok=ok, text=" ".join(text.split())[:300])).decode()
    print(f"\n{_MARK}{line}", flush=True)


def attempt(name: str, look: Callable[[], str]) -> None:
    """Say what `look` returns; or, if it raises something, that."""
    try:
        report(name, True, look())
    except Exception as problem:
        text = problem.what if isinstance(problem, FrogError) else str(problem)
        report(name, False, (text.strip().splitlines() or [type(problem).__name__])[0])


def read_reports(output: str) -> list[Seen]:
    """What a program has reported, among all that it printed."""
    found = []
    for line in output.splitlines():
        if line.startswith(_MARK):
            with contextlib.suppress(FrogError):  # cut short by its end
                found.append(decode(line.removeprefix(_MARK), Seen, "a probe"))
    return found

"""The probes' findings and how they report them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgspec

from frog.core.errors import FrogError
from frog.core.schema import Typed, decode

SCRATCH = ".frog-doctor-"
"""Prefix of the folders that probes create as tests; the parent removes the leftovers of a killed probe."""
_MARK = "frog-doctor: "


class Seen(Typed, kw_only=True, frozen=True):
    """The result of one test, under its name in `needs.py`."""

    name: str
    ok: bool
    text: str
    """A version, a size or an error, for people."""
    answered: bool = True
    """False if the probe took too long, so that nothing is known."""


def report(name: str, ok: bool, text: str) -> None:
    """Print one finding immediately, on its own line: the next test may hang or crash."""
    line = msgspec.json.encode(Seen(name=name, ok=ok, text=" ".join(text.split())[:300])).decode()
    print(f"\n{_MARK}{line}", flush=True)


def attempt(name: str, look: Callable[[], str]) -> None:
    """Report the result of `look`, or the exception that it raises."""
    try:
        report(name, True, look())
    except Exception as problem:
        text = problem.what if isinstance(problem, FrogError) else str(problem)
        report(name, False, (text.strip().splitlines() or [type(problem).__name__])[0])


def read_reports(output: str) -> list[Seen]:
    """Extract the findings from a program's output."""
    reports = []
    for line in output.splitlines():
        if line.startswith(_MARK):
            with contextlib.suppress(FrogError):  # the program ended in the middle of the line
                reports.append(decode(line.removeprefix(_MARK), Seen, "a probe"))
    return reports

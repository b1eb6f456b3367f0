"""Diagnose a folder of any program: gather the evidence of each start, and apply the rules."""

from __future__ import annotations

from pathlib import Path

from frog.diagnose.diagnosis import Diagnosis
from frog.diagnose.program.gather import gather
from frog.diagnose.program.observed import attempts_of
from frog.diagnose.program.rules import diagnose_program

_GOOD = ("none", "running", "interrupted", "slow", "teardown")


def diagnose_folder(path: Path) -> Diagnosis:
    """Return what went wrong in the program whose evidence lies in a folder or file.

    Raises:  RunError if no file there is evidence.
    """
    attempts = attempts_of(path)
    found = diagnose_program(gather(path, attempts[-1]))
    if len(attempts) == 1:
        return found
    earlier = [diagnose_program(gather(path, attempt)) for attempt in attempts[-20:-1]]
    failed = [one for one in earlier if one.fault not in _GOOD]
    if found.fault not in _GOOD or not failed:
        return found.with_more(also=tuple(earlier))
    again = "the program was started again and completed" if found.outcome == "completed" else "it was started again"
    return failed[-1].with_more(
        finding=f"{failed[-1].finding}; {again}", outcome="recovered", also=(*failed[:-1], found)
    )

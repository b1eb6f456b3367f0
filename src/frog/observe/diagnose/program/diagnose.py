"""Diagnose a folder of any program: gather the evidence of each start, and apply the rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from frog.core.errors import FrogError
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.program.gather import gather
from frog.observe.diagnose.program.rules import diagnose_program
from frog.observe.diagnose.program.run_folder_evidence import attempts_of
from frog.observe.diagnose.recorded import recorded_findings

_NO_FINDING = ("unknown", "none", "running")
_GOOD = ("none", "running", "interrupted", "slow", "no_sync", "teardown")


def diagnose_folder(path: Path) -> Diagnosis:
    """Return what went wrong in the program whose evidence lies in a folder or file.

    Raises:  RunError if no file there is evidence.
    """
    return _with_recorded(_of_attempts(path), path)


def describe_hang(path: Path) -> str:
    """Return the finding on a hanging program as a line; empty without one."""
    try:
        found = diagnose_folder(path)
    except FrogError:
        return ""
    if found.fault in _NO_FINDING:
        return ""
    return f"{'diagnosis' if found.certain else 'probably'}: {found.finding}"


def _of_attempts(path: Path) -> Diagnosis:
    """Return what went wrong in the last start that failed, and in the earlier ones."""
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


def _with_recorded(found: Diagnosis, path: Path) -> Diagnosis:
    """Add what the numbers show that the program recorded; in a run that did not fail, they come first."""
    folder = RunFolder(path)
    recorded = recorded_findings(read_history(folder)) if folder.event_ranks() else []
    completed = found.fault in ("none", "running", "interrupted") or (found.fault == "nan" and not found.certain)
    if not recorded or not completed:
        return found.with_more(also=(*found.also, *recorded))
    first, *rest = recorded
    return replace(first, outcome=found.outcome, also=(*rest, *found.also))

"""Compare two runs of programs that are not Frog's: command, versions, environment, world and end."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from frog.core.errors import RunError
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import WorldEvent
from frog.core.runs.read import read_launcher
from frog.core.runs.record import ProgramInfo, Record, RunFile
from frog.core.schema import shortened

Outcome = Literal["equal", "close", "different", "not compared"]
_MOST_SHOWN = 8


@dataclass
class Finding:
    """The result of one comparison."""

    what: str
    outcome: Outcome
    detail: str
    factor: int | None = None
    """An exact factor between the first numbers; negative if that of A is the larger."""


def compare_programs(a: RunFolder, b: RunFolder) -> tuple[tuple[str, str], list[Finding]] | None:
    """Return titles and findings of two runs of programs; None if both are runs of Frog's trainer.

    Raises:  RunError if only one is.
    """
    runs = a.read_run_json(), b.read_run_json()
    left, right = runs[0].program, runs[1].program
    if left is None and right is None:
        return None
    if left is None or right is None:
        program = b if left is None else a
        raise RunError(
            f"{program.path}: the program recorded no steps or losses to compare",
            "call frog.record in its training loop",
        )
    worlds, records = (_world(a), _world(b)), (a.read_achieved(), b.read_achieved())
    findings = [
        _finding("command", shlex.join(left.command), shlex.join(right.command)),
        _settings("versions", runs[0].versions, runs[1].versions),
        _settings("environment", _environment(left), _environment(right)),
        _finding("world", f"{worlds[0]} ranks", f"{worlds[1]} ranks"),
        _finding("end", _end(records[0]), _end(records[1])),
        Finding("results", "not compared", "a program that does not call frog.record reports no steps or losses"),
    ]
    return (_title(a, runs[0], worlds[0]), _title(b, runs[1], worlds[1])), findings


def _title(folder: RunFolder, run: RunFile, world: int) -> str:
    return f"{folder.path}: started {run.created}, world {world}"


def _world(folder: RunFolder) -> int:
    last = read_launcher(folder).last(WorldEvent)
    return last.world_size if last else 0


def _environment(program: ProgramInfo) -> dict[str, str]:
    return {**program.environment, "directory": program.cwd}


def _end(record: Record | None) -> str:
    if record is None:
        return "no record"
    return f"{record.status}, {record.error.type} on rank {record.error.rank}" if record.error else record.status


def _finding(what: str, left: str, right: str) -> Finding:
    if left == right:
        return Finding(what, "equal", shortened(left, 200))
    return Finding(what, "different", f"{shortened(left, 200)} and {shortened(right, 200)}")


def _settings(what: str, left: Mapping[str, str], right: Mapping[str, str]) -> Finding:
    differing = [name for name in sorted({*left, *right}) if left.get(name) != right.get(name)]
    if not differing:
        return Finding(what, "equal", f"{len(left)} entries")
    shown = [
        f"{shortened(name)}: {_shown(left.get(name))} and {_shown(right.get(name))}" for name in differing[:_MOST_SHOWN]
    ]
    more = [f"{len(differing) - _MOST_SHOWN} more"] if len(differing) > _MOST_SHOWN else []
    return Finding(what, "different", "; ".join([*shown, *more]))


def _shown(value: str | None) -> str:
    return "unset" if value is None else shortened(value, 100)

"""Inject faults into a program that is not Frog's: `frog chaos --nproc 2 --fault "kill rank=1 after=5" -- my.py`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from frog.core.errors import LaunchError
from frog.launch.node_agents import Options
from frog.launch.nodes import Nodes
from frog.launch.world import run_world
from frog.measure.chaos.program_faults import ProgramFault

HOOKS = ("frog_observer", "frog_observer.faults")


@dataclass(frozen=True)
class Launched:
    """The outcome of one launch."""

    code: int
    happened: dict[int, str]
    """The faults that happened, by their index: their Unix time in nanoseconds, and the collectives until then."""


def launch_with_faults(
    nodes: Nodes, program: Sequence[str], options: Options, faults: Sequence[ProgramFault]
) -> Launched:
    """Run a program on every rank, with these faults; print the error if the world fails."""
    with tempfile.TemporaryDirectory(prefix="frog-chaos-") as scratch:
        path = Path(scratch) / "faults.json"
        path.write_text(json.dumps([asdict(fault) for fault in faults]))
        env = {**options.extra_env, "FROG_FAULTS": str(path)}
        options = replace(options, runs=Path("runs"), hooks=HOOKS, extra_env=env)
        try:
            code = run_world(nodes, program, options)
        except LaunchError as error:
            print(f"error: {error}", file=sys.stderr)
            code = error.exit_code
        marks = {number: Path(scratch) / f"{number}.done" for number in range(len(faults))}
        return Launched(code, {number: mark.read_text() for number, mark in marks.items() if mark.exists()})


def inject(nodes: Nodes, program: Sequence[str], options: Options, faults: Sequence[ProgramFault]) -> int:
    """Run a program with faults; return its exit code, or 1 if a fault never happened."""
    launched = launch_with_faults(nodes, program, options, faults)
    for number, fault in enumerate(faults):
        if number not in launched.happened:
            print(f"fault never happened: {fault}", file=sys.stderr)
    if launched.code and launched.happened:
        print("see the evidence: frog diagnose latest", file=sys.stderr)
    return launched.code or int(len(launched.happened) < len(faults))

"""`frog doctor`: which labs run on this machine."""

from __future__ import annotations

import argparse

from frog.core.errors import LaunchError
from frog.learn.doctor.needs import LABS

_DEADLINE_S = 30.0


def add_doctor_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="check that this machine has what the labs need",
        description="Check what the labs need from this machine: Python, torch, devices, the results of each gloo "
        "operation, ports, memory, disk, tools. Report for each lab whether it runs, runs with substitutes, "
        "or needs something installed first. The exit code is 0 if all labs run.",
    )
    parser.add_argument("--lab", type=int, choices=sorted(LABS), metavar="N", help="check only what this lab needs")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--deadline", type=float, default=_DEADLINE_S, metavar="S", help="seconds for all probes (default: %(default)g)"
    )
    parser.set_defaults(handler=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    import json

    from frog.learn.doctor.doctor_text import as_json, as_text
    from frog.learn.doctor.lab_verdict import judge
    from frog.learn.doctor.probes import probe_machine

    labs = sorted(LABS) if args.lab is None else [args.lab]
    try:
        seen = probe_machine(args.deadline)
    except OSError as problem:
        raise LaunchError(f"cannot start the probes: {problem}", "check space and limits: df -h; ulimit -a") from None
    print(json.dumps(as_json(seen, labs), indent=2, ensure_ascii=False) if args.json else as_text(seen, labs))
    return 0 if all(judge(seen, lab).runs for lab in labs) else 1

"""`frog plan calibrate`: measure this machine, and write its profile. Imports happen when the command runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from frog.core.user_input import at_least

PROFILE = Path("machine.toml")
"""The profile that `frog plan RUN.toml` and `frog report` use if nothing names another one."""


def add_calibrate_parser(actions: argparse._SubParsersAction[Any]) -> None:
    """Add `frog plan calibrate`."""
    parser = actions.add_parser(
        "calibrate",
        help="measure this machine, to predict runs on it",
        description="Measure products, layers of the model, memory, the optimizer and the collectives of real worlds "
        "on this machine, and write a cluster file of it. Takes one to two minutes.",
    )
    parser.add_argument(
        "--to", type=Path, default=PROFILE, metavar="FILE", help=f"the cluster file; default: {PROFILE}"
    )
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8, 16), default=4, help="most ranks; default: 4")
    parser.add_argument("--threads", type=at_least(1), metavar="N", help="threads per rank; default: as frog run")
    parser.add_argument("--quick", action="store_true", help="few sizes, measured briefly: seconds, for a first look")
    parser.set_defaults(handler=_calibrate)


def _calibrate(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError
    from frog.core.files import write_atomic
    from frog.core.machine import usable_cores
    from frog.core.runs.folder import check_output
    from frog.plan.machine.calibration import calibrate, summary_lines
    from frog.plan.machine.request import Request, quick
    from frog.plan.machine.world import worlds_of

    check_output(args.to)
    if args.to.is_dir() or not args.to.parent.is_dir():  # not only after minutes of measuring
        raise UsageError(f"--to {args.to}: not a file in an existing folder", "--to machine.toml")
    worlds = worlds_of(args.ranks, args.threads)
    request = quick(worlds, usable_cores()) if args.quick else Request(worlds, usable_cores())
    calibration = calibrate(request)
    write_atomic(args.to, calibration.text)
    print("\n".join(summary_lines(calibration)))
    print(f"{args.to}: use it with frog plan RUN.toml --cluster {args.to}")
    return 0

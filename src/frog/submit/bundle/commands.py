"""`frog bundle RUN.toml --to DIR` and `frog bundle --check DIR`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from frog.core.errors import LaunchError, UsageError
from frog.core.exitcodes import signal_code
from frog.core.printable import printable

_MOST_SHOWN, _LONGEST_SHOWN = 50, 300
"""Lines about a bundle that is not whole, and characters of one."""


def add_bundle_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog bundle`."""
    parser = commands.add_parser(
        "bundle",
        help="a folder with all that a run needs on a cluster without internet",
        description="Put wheels, prepared data, the run file and a job file into a folder, with checksums.",
    )
    parser.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml")
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder to make")
    parser.add_argument("--check", type=Path, metavar="DIR", help="look whether a bundle is whole, and make nothing")
    parser.add_argument("--force", action="store_true", help="replace a bundle that is there; its runs are kept")
    parser.add_argument("--no-wheels", action="store_true", help="leave the wheels out: Frog is there already")
    parser.add_argument(
        "--platform",
        metavar="TAG",
        help="wheels for an older Linux on this type of machine, such as manylinux_2_28_x86_64; default: for this one",
    )
    parser.add_argument("--python-version", metavar="3.X", help="the Python there, which must be this one's")
    job = parser.add_argument_group("the job file, as for frog submit")
    job.add_argument("--profile", default="generic", metavar="NAME", help="default: %(default)s")
    job.add_argument("--nodes", type=int, metavar="N", help="default: 1")
    job.add_argument("--ranks-per-node", type=int, metavar="N", help="default: one for each GPU of a node")
    job.add_argument("--time", metavar="HH:MM:SS", help="default: 00:30:00")
    job.add_argument("--account", metavar="NAME")
    job.add_argument("--partition", metavar="NAME", help="default: the profile's")
    job.add_argument("--qos", metavar="NAME", help="default: the profile's")
    job.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one field; repeatable")
    parser.set_defaults(handler=run_bundle)


def run_bundle(args: argparse.Namespace) -> int:
    """Make a bundle, or check one."""
    if args.check is not None:
        if args.run_file is not None or args.to is not None:
            raise UsageError("both --check and a bundle to make", "frog bundle --check DIR alone")
        return _check(args.check)
    if args.run_file is None or args.to is None:
        raise UsageError("no run file, or no folder to make", "frog bundle config/demo.toml --to DIR")
    from frog.submit.bundle.make import make_bundle

    before = signal.signal(signal.SIGTERM, _stop)
    try:
        make_bundle(args)
    except OSError as error:
        raise LaunchError(f"{args.to} could not be made: {error}", "is there room, and may you write there?") from error
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End as by an error, so that what was begun is removed."""
    raise SystemExit(signal_code(number))


def _check(folder: Path) -> int:
    from frog.core.schema import shortened
    from frog.submit.bundle.sums import check_sums

    wrong = check_sums(folder)
    for problem in wrong[:_MOST_SHOWN]:
        print(printable(f"{folder}: {shortened(problem, _LONGEST_SHOWN)}"))
    if len(wrong) > _MOST_SHOWN:
        print(f"{folder}: ... and {len(wrong) - _MOST_SHOWN} more")
    if wrong:
        print(f"{folder}: not whole: copy it again, or make it anew")
        return 1
    print(f"{folder}: whole")
    return 0

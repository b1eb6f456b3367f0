"""`frog bundle RUN.toml --to DIR` and `frog bundle --check DIR`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from frog.cluster.submit.submit_commands import separate_work
from frog.core.errors import LaunchError, UsageError, signal_code
from frog.core.terminal import printable
from frog.core.user_input import at_least

_MOST_SHOWN, _LONGEST_SHOWN = 50, 300
"""Most problems of an incomplete bundle to print, and most characters of each."""


def add_bundle_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog bundle`."""
    parser = commands.add_parser(
        "bundle",
        help="make a folder with everything that a run needs on a cluster without internet",
        description="Put wheels, prepared data, the run file and a job file into a folder, with checksums.",
    )
    parser.add_argument("run_file", nargs="?", metavar="RUN.toml")
    parser.add_argument(
        "program", nargs="*", metavar="-- COMMAND", help="instead: any program, such as -- my.py --lr 0.1"
    )
    parser.add_argument("--to", type=Path, metavar="DIR", help="the folder to create")
    parser.add_argument("--check", type=Path, metavar="DIR", help="check that a bundle is complete, and create nothing")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle; its runs are kept")
    parser.add_argument("--no-wheels", action="store_true", help="omit the wheels, if the cluster has Frog")
    parser.add_argument(
        "--platform",
        metavar="TAG",
        help="platform of the wheels, such as manylinux_2_28_x86_64 for an older Linux (default: this machine)",
    )
    parser.add_argument(
        "--python-version", metavar="3.X", help="the cluster's Python version, which must equal this one"
    )
    job = parser.add_argument_group("the job file, as for frog submit")
    job.add_argument("--profile", default="generic", metavar="NAME", help="default: %(default)s")
    job.add_argument("--nodes", type=at_least(1), metavar="N", help="default: 1")
    job.add_argument("--ranks-per-node", type=at_least(1), metavar="N", help="default: one per GPU of a node")
    job.add_argument("--time", metavar="HH:MM:SS", help="default: 00:30:00")
    job.add_argument("--account", metavar="NAME")
    job.add_argument("--partition", metavar="NAME", help="default: the profile's")
    job.add_argument("--qos", metavar="NAME", help="default: the profile's")
    program = parser.add_argument_group("-- COMMAND")
    program.add_argument("--name", metavar="NAME", help="name of the job (default: the program's)")
    program.add_argument(
        "--requirements",
        metavar="FILE",
        help="the file that lists the packages to take along as wheels (default: requirements.txt, if there is one)",
    )
    program.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN", help="files or folders to leave out; repeatable"
    )
    program.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="FILE",
        help="take along a file that looks like a password or a key; repeatable",
    )
    program.add_argument(
        "--requeue", action="store_true", help="start the job again at its time limit: the program resumes by itself"
    )
    program.add_argument("--no-observe", action="store_true", help="do not record what each rank does")
    job.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one field; repeatable")
    parser.set_defaults(handler=run_bundle)


def run_bundle(args: argparse.Namespace) -> int:
    """Create a bundle, or check one."""
    if args.check is not None:
        if args.run_file is not None or args.to is not None:
            raise UsageError("--check cannot be combined with options that create a bundle", "frog bundle --check DIR")
        return _check(args.check)
    if args.run_file is None or args.to is None:
        raise UsageError("the run file or the folder to create is missing", "frog bundle config/demo.toml --to DIR")
    separate_work(
        args, of_program=("name", "requirements", "exclude", "secret", "requeue", "no_observe"), of_run_file=("set",)
    )
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        _make(args)
    except OSError as error:
        raise LaunchError(
            f"{args.to} could not be created: {error}", "check the free space and your permissions there"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _make(args: argparse.Namespace) -> None:
    if args.program:
        from frog.cluster.submit.make_bundle import make_program_bundle

        make_program_bundle(args)
    else:
        from frog.cluster.submit.make_bundle import make_bundle

        make_bundle(args)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """Turn SIGTERM into an exception, so that unfinished files are removed."""
    raise SystemExit(signal_code(number))


def _check(folder: Path) -> int:
    from frog.cluster.submit.bundle_folder import check_sums
    from frog.core.schema import shortened

    wrong = check_sums(folder)
    for problem in wrong[:_MOST_SHOWN]:
        print(printable(f"{folder}: {shortened(problem, _LONGEST_SHOWN)}"))
    if len(wrong) > _MOST_SHOWN:
        print(f"{folder}: ... and {len(wrong) - _MOST_SHOWN} more")
    if wrong:
        print(f"{folder}: incomplete bundle. Copy it again or rebuild it")
        return 1
    print(f"{folder}: complete")
    return 0

"""The arguments of a training run, the same for `frog train` and `train.py`, and of one that is profiled."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.argument_types import at_least

DEFAULT_RUN_FILE = Path("config/demo.toml")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `frog.train.main.run_rank` reads."""
    _add_run_file(parser)
    add_resume_arguments(parser)


def add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --resume and --continue."""
    parser.add_argument("--resume", metavar="RUN", help="go on with a run (a name, a folder, or latest)")
    parser.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with the run of this name from its last good checkpoint if there is one, else begin it",
    )


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `frog.profile.rank` reads on every rank."""
    _add_run_file(parser)
    parser.add_argument(
        "--steps", type=at_least(1), default=3, metavar="N", help="how many steps are recorded (default: %(default)s)"
    )


def _add_run_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml", help=f"default: {DEFAULT_RUN_FILE}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field; repeatable"
    )

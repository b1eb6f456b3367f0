"""The arguments of a training run, shared by `frog train` and `train.py`, and those of a profiled run."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.user_input import at_least

DEFAULT_RUN_FILE = Path("config/demo.toml")


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `frog.train.main.run_rank` reads."""
    _add_run_file(parser)
    add_resume_arguments(parser)


def add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --resume and --continue."""
    parser.add_argument("--resume", metavar="RUN", help="continue a run (a name, a folder, or latest)")
    parser.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="continue the run of this name from its last good checkpoint, or start it if it has none",
    )


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `frog.train.profile.profile_rank` reads on every rank."""
    _add_run_file(parser)
    parser.add_argument(
        "--steps", type=at_least(1), default=3, metavar="N", help="number of steps to record (default: %(default)s)"
    )


def _add_run_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_file", nargs="?", type=Path, metavar="RUN.toml", help=f"default: {DEFAULT_RUN_FILE}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field; repeatable"
    )

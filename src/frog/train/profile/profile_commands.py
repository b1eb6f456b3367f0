"""`frog profile`: profile a short run with torch.profiler, and print a summary."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.config.arguments import add_profile_arguments
from frog.core.user_input import at_least


def add_profile_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`frog profile`."""
    parser = commands.add_parser(
        "profile",
        help="record a few steps of a run with torch.profiler, and show where the time went",
        description="Start a short run, record its last steps on every rank, and print a page: time by "
        "part and phase, communication, waiting for ranks, operators, matrix products, memory. The page is saved as "
        "profile/summary.md in the run folder, next to a Chrome trace of each rank and one of all ranks.",
    )
    add_profile_arguments(parser)
    parser.add_argument(
        "--nproc", type=at_least(1), default=1, metavar="N", help="number of ranks (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", help="threads per rank (default: the cores divided among the ranks)"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of the run under runs/ (default: the run file's name with -profile)"
    )
    parser.set_defaults(handler=_profile)


def _profile(args: argparse.Namespace) -> int:
    from frog.core.config import load_run_config
    from frog.core.config.arguments import DEFAULT_RUN_FILE
    from frog.core.runs.folder import RunFolder, free_name
    from frog.launch.node_agents import Options
    from frog.launch.world import run_world
    from frog.train.profile.profile_files import write_profile

    run_file = args.run_file or DEFAULT_RUN_FILE
    name = free_name(args.name or f"{load_run_config(run_file, args.set).name}-profile")
    settings = [*args.set, f"name={name}"]
    load_run_config(run_file, settings).check_world(args.nproc)
    words = [word for setting in settings for word in ("--set", setting)]
    code = run_world(
        args.nproc, ["profile", str(run_file), "--steps", str(args.steps), *words], Options(threads=args.threads)
    )
    if code == 0:
        print(f"\n{write_profile(RunFolder(Path('runs') / name))}", end="")
    return code

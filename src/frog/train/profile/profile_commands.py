"""`frog profile`: profile a short run with torch.profiler, and print a summary."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.config.arguments import add_profile_arguments
from frog.core.errors import UsageError
from frog.core.user_input import at_least


def add_profile_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """`frog profile`."""
    parser = commands.add_parser(
        "profile",
        help="record a few steps of a run with torch.profiler, and show where the time went",
        description="Start a short run, record its last steps on every rank, and print a page: time by "
        "part and phase, communication, waiting for ranks, operators, matrix products, memory. The page is saved as "
        "profile/summary.md in the run folder, next to a Chrome trace of each rank and one of all ranks. "
        "frog profile --nproc 2 -- my.py does the same for your own program: after a few steps of its optimizer, it "
        "records some, writes a trace and torch's table of operators for each rank, and ends the program.",
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
    parser.add_argument(
        "--after",
        type=at_least(1),
        default=5,
        metavar="N",
        help="of your own program: optimizer steps before the recorded ones (default: %(default)s)",
    )
    parser.add_argument(
        "--continue", dest="stop", action="store_false", help="let your own program run on after the recorded steps"
    )
    parser.add_argument("program", nargs="*", metavar="-- PROGRAM", help="your own program: -- my.py ...")
    parser.set_defaults(handler=_profile)


def _profile(args: argparse.Namespace) -> int:
    from frog.core.config import load_run_config
    from frog.core.config.arguments import DEFAULT_RUN_FILE
    from frog.core.runs.folder import RunFolder, free_name
    from frog.launch.node_agents import Options
    from frog.launch.world import run_world
    from frog.train.profile.profile_files import write_profile

    words = [*([str(args.run_file)] if args.run_file else []), *args.program]
    words = words[1:] if words[:1] == ["--"] else words
    if words and not words[0].endswith(".toml"):
        return _profile_program(args, words)
    if len(words) > 1:
        raise UsageError(
            f"{words[1]} is one word too many", "frog profile RUN.toml, or frog profile -- my.py ARGUMENTS"
        )
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


def _profile_program(args: argparse.Namespace, program: list[str]) -> int:
    from frog.train.profile.profile_programs import profile_program

    if args.set or args.name:
        raise UsageError("--set and --name are for runs of Frog's own trainer", f"frog profile -- {' '.join(program)}")
    return profile_program(program, args.nproc, args.threads, args.after, args.steps, args.stop)

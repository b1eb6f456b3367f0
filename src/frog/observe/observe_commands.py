"""`frog observe`: the environment that starts the observer, and a look at the ranks of a running program."""

from __future__ import annotations

import argparse
from pathlib import Path

from frog.core.user_input import at_least


def add_observe_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `observe`."""
    parser = commands.add_parser(
        "observe",
        help="show what each rank of a running program is doing; observe the ranks of plain torchrun or srun",
        description="Ask the ranks of a running program for their stacks and collectives, and show where each one is. "
        "`frog run` observes every program. With --env, print the environment in which plain torchrun or srun does so "
        "too.",
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="a running program: a name, a folder, or latest")
    parser.add_argument("--env", action="store_true", help="print the lines of an environment file")
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="with --env: folder for what the ranks write (default: a new one in runs/)",
    )
    parser.add_argument(
        "--simulate-gpus",
        type=at_least(1),
        metavar="N",
        help="with --env: also give each node N simulated GPUs, which compute on the CPU",
    )
    parser.set_defaults(handler=_observe)


def _observe(args: argparse.Namespace) -> int:
    from frog.core.errors import UsageError

    if args.env == (args.run is not None):
        raise UsageError("observe needs a run, or --env", "frog observe latest, or frog observe --env > frog.env")
    if args.dir is not None and not args.env:
        raise UsageError("--dir belongs to --env", "frog observe DIR")
    if args.simulate_gpus is not None and not args.env:
        raise UsageError("--simulate-gpus belongs to --env", "the GPUs of a running program do not change")
    return _print_environment(args.dir, args.simulate_gpus) if args.env else _show_ranks(args.run)


def _print_environment(folder: Path | None, num_gpus: int | None) -> int:
    import shlex

    from frog.core.runs.folder import free_name
    from frog.core.runs.observed import observed_folder
    from frog.observe.environment import environment, simulated_gpus

    chosen = folder or Path("runs") / free_name("observed")
    observed_folder(chosen).mkdir(parents=True, exist_ok=True)
    variables = environment(chosen)
    if num_gpus is not None:
        variables |= simulated_gpus(num_gpus, variables)
    for name, value in variables.items():
        print(f"{name}={shlex.quote(value)}")
    return 0


def _show_ranks(run: str) -> int:
    from frog.core.terminal import terminal_columns, wrapped_lines
    from frog.observe.ask import ask_ranks

    print(wrapped_lines(ask_ranks(run), terminal_columns()))
    return 0

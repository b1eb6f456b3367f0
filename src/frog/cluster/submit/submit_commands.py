"""`frog submit RUN.toml --to slurm|kubernetes` and its options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from frog.core.config.arguments import DEFAULT_RUN_FILE
from frog.core.errors import UsageError
from frog.core.user_input import at_least

FOR_SLURM = ("profile", "time", "account", "partition", "qos", "bundle", "requeue")
FOR_KUBERNETES = (
    "kind", "image", "namespace", "name", "gpus", "restarts", "claim", "storage", "storage_class", "cpus", "memory",
    "runtime", "include",
)  # fmt: skip
"""Options that only one kind of cluster has."""


def add_submit_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog submit`."""
    parser = commands.add_parser(
        "submit",
        help="submit a run to a cluster: Slurm or Kubernetes",
        description="Render the job for the cluster, check it against the run file, and submit it.",
    )
    parser.add_argument("run_file", nargs="?", metavar="RUN.toml", help=f"such as {DEFAULT_RUN_FILE}")
    parser.add_argument(
        "program", nargs="*", metavar="-- COMMAND", help="instead: any program, such as -- my.py --lr 0.1"
    )
    parser.add_argument("--to", choices=["slurm", "kubernetes"], required=True)
    parser.add_argument("--nodes", type=at_least(1), metavar="N", help="number of nodes (default: 1)")
    parser.add_argument("--ranks-per-node", type=at_least(1), metavar="N", help="ranks per node (default: one per GPU)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field of the run file; repeatable"
    )
    program = parser.add_argument_group("-- COMMAND")
    program.add_argument(
        "--requeue",
        action="store_true",
        help="slurm: start the job again at its time limit: the program resumes by itself",
    )
    program.add_argument("--no-observe", action="store_true", help="do not record what each rank does")
    parser.add_argument("--dry-run", action="store_true", help="print the job and submit nothing")
    _add_slurm_options(parser.add_argument_group("--to slurm"))
    _add_kubernetes_options(parser)
    parser.set_defaults(handler=partial(run_submit, parser))


def _add_slurm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        metavar="NAME",
        help="the cluster: the name of a file in config/clusters/, or PATH.toml (default: the bundle's, or generic)",
    )
    group.add_argument("--time", metavar="HH:MM:SS", help="time limit (default: 00:30:00)")
    group.add_argument("--account", metavar="NAME", help="the account to charge")
    group.add_argument("--partition", metavar="NAME", help="default: the profile's")
    group.add_argument("--qos", metavar="NAME", help="default: the profile's")
    group.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help="run from this bundle, with its environment, data, run file and settings",
    )


def _add_kubernetes_options(parser: argparse.ArgumentParser) -> None:
    from frog.cluster.submit.submit_kubernetes import add_options

    add_options(parser)


def run_submit(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Submit the run or the program; return the exit code."""
    _read_work(args)
    _check_options(parser, args)
    if args.to == "kubernetes":
        from frog.cluster.submit.submit_kubernetes import submit_to_kubernetes

        args.nodes = args.nodes if args.nodes is not None else 1
        return submit_to_kubernetes(args)
    from frog.cluster.submit.submit_slurm import submit_to_slurm

    return submit_to_slurm(args)


def _read_work(args: argparse.Namespace) -> None:
    if args.run_file is None:
        raise UsageError(
            "nothing to submit",
            f"frog submit {DEFAULT_RUN_FILE} --to {args.to}, or frog submit --to {args.to} -- my.py",
        )
    separate_work(args, of_program=("requeue", "no_observe", "include"), of_run_file=("set", "bundle"))


def separate_work(args: argparse.Namespace, *, of_program: Sequence[str], of_run_file: Sequence[str]) -> None:
    """Separate a run file, which ends in .toml, from a program; refuse options of the other kind."""
    if args.run_file.endswith(".toml") and not args.program:
        args.run_file = Path(args.run_file)
        others, kind = of_program, "a run file"
    else:
        args.program = [args.run_file, *args.program]
        others, kind = of_run_file, "a program"
    wrong = [_as_option(name) for name in others if getattr(args, name)]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: cannot be combined with {kind}", "remove it")


def _check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that belong to the other kind of cluster."""
    others, owner = (FOR_SLURM, "slurm") if args.to == "kubernetes" else (FOR_KUBERNETES, "kubernetes")
    given = [option for option in others if getattr(args, option) != parser.get_default(option)]
    wrong = [_as_option(option) for option in given if option != "name" or not args.program]
    if wrong:
        raise UsageError(f"{', '.join(wrong)}: only --to {owner} has this option", f"remove it, or use --to {owner}")


def _as_option(option: str) -> str:
    return f"--{option.replace('_', '-')}"

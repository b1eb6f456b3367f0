"""`frog submit RUN.toml --to slurm|kubernetes` and its options."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from frog.config.arguments import DEFAULT_RUN_FILE
from frog.core.errors import UsageError

FOR_SLURM = ("profile", "time", "account", "partition", "qos", "bundle")
FOR_KUBERNETES = (
    "kind", "image", "namespace", "name", "gpus", "restarts", "claim", "storage", "storage_class", "cpus", "memory",
    "runtime",
)  # fmt: skip
"""Options that mean nothing to the other."""


def add_submit_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog submit`."""
    parser = commands.add_parser(
        "submit",
        help="hand a run in to a cluster: Slurm or Kubernetes",
        description="Render what the cluster takes, check it against the run file, and hand it in.",
    )
    parser.add_argument("run_file", type=Path, metavar="RUN.toml", help=f"such as {DEFAULT_RUN_FILE}")
    parser.add_argument("--to", choices=["slurm", "kubernetes"], required=True)
    parser.add_argument("--nodes", type=int, metavar="N", help="how many nodes (default: 1)")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="ranks on each node; default: one for each of its GPUs"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field of the run file; repeatable"
    )
    parser.add_argument("--dry-run", action="store_true", help="print it, and hand nothing in")
    _add_slurm_options(parser.add_argument_group("--to slurm"))
    _add_kubernetes_options(parser)
    parser.set_defaults(handler=partial(run_submit, parser))


def _add_slurm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        metavar="NAME",
        help="the cluster: a file of config/clusters/ by its name, or PATH.toml (default: the bundle's, or generic)",
    )
    group.add_argument("--time", metavar="HH:MM:SS", help="time limit (default: 00:30:00)")
    group.add_argument("--account", metavar="NAME", help="the project that pays")
    group.add_argument("--partition", metavar="NAME", help="default: the profile's")
    group.add_argument("--qos", metavar="NAME", help="default: the profile's")
    group.add_argument(
        "--bundle",
        type=Path,
        metavar="DIR",
        help="run from this bundle: its environment, data, run file, and what else it was made with",
    )


def _add_kubernetes_options(parser: argparse.ArgumentParser) -> None:
    from frog.submit.kubernetes import add_options

    add_options(parser)


def run_submit(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    """Hand the run in; return the exit code."""
    _check_options(parser, args)
    if args.to == "kubernetes":
        from frog.submit.kubernetes import submit_to_kubernetes

        args.nodes = args.nodes if args.nodes is not None else 1
        return submit_to_kubernetes(args)
    from frog.submit.slurm import submit_to_slurm

    return submit_to_slurm(args)


def _check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse options that only the other kind of cluster would be asked with, and a count that is none."""
    others, owner = (FOR_SLURM, "slurm") if args.to == "kubernetes" else (FOR_KUBERNETES, "kubernetes")
    if wrong := [option for option in others if getattr(args, option) != parser.get_default(option)]:
        raise UsageError(
            f"{', '.join(map(_written, wrong))}: only --to {owner} has that", f"leave it out, or --to {owner}"
        )
    for option in ("nodes", "ranks_per_node", "cpus"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise UsageError(f"{_written(option)} {value}: must be at least 1")


def _written(option: str) -> str:
    return f"--{option.replace('_', '-')}"

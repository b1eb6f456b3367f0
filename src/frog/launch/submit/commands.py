"""`frog submit RUN.toml --to slurm|kubernetes` and its options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from frog.config.arguments import DEFAULT_RUN_FILE


def add_submit_parser(commands: argparse._SubParsersAction[Any]) -> None:
    """Add `frog submit`."""
    parser = commands.add_parser(
        "submit",
        help="hand a run in to a cluster: Slurm or Kubernetes",
        description="Render what the cluster takes, check it against the run file, and hand it in.",
    )
    parser.add_argument("run_file", type=Path, metavar="RUN.toml", help=f"such as {DEFAULT_RUN_FILE}")
    parser.add_argument("--to", choices=["slurm", "kubernetes"], required=True)
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="how many nodes (default: %(default)s)")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="N", help="ranks on each node; default: one for each of its GPUs"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one field of the run file; repeatable"
    )
    parser.add_argument("--dry-run", action="store_true", help="print it, and hand nothing in")
    _add_slurm_options(parser.add_argument_group("--to slurm"))
    _add_kubernetes_options(parser)
    parser.set_defaults(handler=run_submit)


def _add_slurm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        default="generic",
        metavar="NAME",
        help="the cluster: a file of config/clusters/ by its name, or PATH.toml (default: %(default)s)",
    )
    group.add_argument("--time", metavar="HH:MM:SS", help="time limit (default: 00:30:00)")
    group.add_argument("--account", metavar="NAME", help="the project that pays")
    group.add_argument("--partition", metavar="NAME", help="default: the profile's")
    group.add_argument("--qos", metavar="NAME", help="default: the profile's")
    group.add_argument(
        "--bundle", type=Path, metavar="DIR", help="run from this bundle: its environment, data, run file"
    )


def _add_kubernetes_options(parser: argparse.ArgumentParser) -> None:
    from frog.launch.kubernetes.submit import add_options

    add_options(parser)


def run_submit(args: argparse.Namespace) -> int:
    """Hand the run in; return the exit code."""
    if args.to == "kubernetes":
        from frog.launch.kubernetes.submit import submit_to_kubernetes
        from frog.launch.kubernetes.wish import Wish

        args.ranks_per_node = args.ranks_per_node if args.ranks_per_node is not None else Wish.ranks_per_node
        return submit_to_kubernetes(args)
    from frog.launch.submit.slurm import submit_to_slurm

    return submit_to_slurm(args)

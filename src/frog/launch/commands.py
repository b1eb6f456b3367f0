"""`frog run`: start a world on this machine."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.argument_types import at_least
from frog.core.errors import UsageError

if TYPE_CHECKING:
    from frog.launch.nodes import Nodes
    from frog.launch.start import Options


_LEAST_DEADLINE_S = 2.0
"""Shorter, and a healthy rank that is slow for a moment is killed."""


def add_run_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog run`."""
    parser = commands.add_parser(
        "run",
        help="start a world of several ranks, or of several pretended nodes, on this machine",
        description="Start a world over torchrun: frog run --nproc 4 -- train config/demo.toml",
    )
    add_world_arguments(parser)
    parser.add_argument(
        "--from", dest="manifest", type=Path, metavar="K8S.yaml", help="run a manifest's pods here, as processes"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, help="-- train RUN.toml ..., or a script")
    parser.set_defaults(handler=_run)


def add_world_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says how a world is started and watched; `read_world` reads it."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", type=at_least(1), metavar="N", help="how many ranks, on one node")
    size.add_argument(
        "--nodes", metavar="NODESxRANKS", help="pretended nodes: 2x4 is two of four ranks; 1:3x2 may shrink and grow"
    )
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", help="threads per rank; default: the cores shared out"
    )
    parser.add_argument(
        "--restarts",
        type=at_least(0),
        metavar="N",
        help="how often a failed world starts again from its last good checkpoint (default: 0; 3 if it may shrink)",
    )
    parser.add_argument(
        "--replace",
        type=at_least(0),
        default=0,
        metavar="N",
        help="how many lost ranks are replaced by new ones, at most, in a run with comm.on_loss=shrink (default: 0)",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="a rank that gives no sign of life for so long is killed (default: %(default)g)",
    )
    parser.add_argument(
        "--network", metavar="LINK", help='give the nodes a slow network: "rate=100mbit delay=20ms" (Linux)'
    )


def _run(args: argparse.Namespace) -> int:
    from frog.launch.world import run_world

    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.manifest is not None:
        from frog.cluster.kubernetes.local import run_manifest

        none = argparse.ArgumentParser()
        add_world_arguments(none)
        for option, default in vars(none.parse_args([])).items():
            if getattr(args, option) != default:
                raise UsageError(
                    f"--{option.replace('_', '-')}: --from takes the world from the manifest, and all that it may do",
                    f"frog run --from {args.manifest}",
                )
        return run_manifest(args.manifest, extra=program)
    nodes, options = read_world(args)
    return run_world(nodes, program, options)


def read_world(args: argparse.Namespace, extra_env: Mapping[str, str] | None = None) -> tuple[Nodes, Options]:
    """The nodes and options that the arguments name. Raises UsageError naming what cannot be."""
    from frog.launch.nodes import Nodes, parse_nodes
    from frog.launch.start import Options

    if args.nproc is None and args.nodes is None:
        raise UsageError("how large is the world?", "--nproc 4 for four ranks, or --nodes 2x4 for two nodes of four")
    nodes = parse_nodes(args.nodes) if args.nodes is not None else Nodes(1, 1, args.nproc)
    restarts = args.restarts if args.restarts is not None else 3 if nodes.elastic else 0
    if not _LEAST_DEADLINE_S <= args.deadline < math.inf:
        raise UsageError(
            f"--deadline {args.deadline:g}: ranks give a sign of life twice a second",
            f"at least {_LEAST_DEADLINE_S:g} seconds",
        )
    if args.network and not nodes.several:
        raise UsageError("--network needs several nodes: one node has no link", "--nodes 2x2")
    network = None
    if args.network:
        from frog.launch.network import parse_network

        network = parse_network(args.network)
    env = dict(extra_env or {})
    options = Options(args.threads, restarts, args.deadline, replace=args.replace, network=network, extra_env=env)
    return nodes, options

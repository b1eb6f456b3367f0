"""`frog explain barrier|rendezvous|all-reduce`: run a small real world, report who waited for whom, and how long."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from frog.core.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from frog.launch.nodes import Nodes

WHATS = ("barrier", "rendezvous", "all-reduce")
_MOST = 16


def add_explain_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `frog explain`."""
    parser = commands.add_parser(
        "explain",
        help="show what a barrier, a rendezvous or an all-reduce does, with a few real ranks",
        description="Start a few real ranks with different amounts of work, and chart which rank waited for "
        "which: frog explain barrier --nproc 4",
    )
    parser.add_argument("what", choices=WHATS)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", type=int, metavar="N", help="how many ranks, on one node (default: 4)")
    size.add_argument("--nodes", metavar="NODESxRANKS", help="simulated nodes: 2x2 is two nodes of two ranks")
    parser.set_defaults(handler=_explain)


def _explain(args: argparse.Namespace) -> int:
    from frog.learn.explain.story import write_story

    nodes = read_nodes(args.nproc, args.nodes)
    code, notes = run_notes(args.what, nodes)
    if code == 0:
        print(write_story(args.what, notes))
    return code


def read_nodes(nproc: int | None, nodes: str | None) -> Nodes:
    """The world that the arguments name. Raises UsageError if it is too small to wait in, or too large for a chart."""
    from frog.launch.nodes import Nodes, parse_nodes

    found = parse_nodes(nodes) if nodes else Nodes(1, 1, 4 if nproc is None else nproc)
    if found.elastic:
        raise UsageError(f"--nodes {nodes}: this world has a fixed size", "--nodes 2x2")
    world_size = found.most * found.ranks
    if not 2 <= world_size <= _MOST:
        raise UsageError(
            f"a world of {world_size}: must have 2 to {_MOST} ranks, so that one can wait for another", "--nproc 4"
        )
    return found


def run_notes(what: str, nodes: Nodes) -> tuple[int, list[dict[str, Any]]]:
    """Run the world; its exit code, and what every rank has noted, by rank."""
    import tempfile
    from pathlib import Path

    from frog.launch.world import run_world
    from frog.learn.explain.notes import read_notes

    with tempfile.TemporaryDirectory(prefix="frog-explain-") as folder:
        code = run_world(nodes, ["explain", what, folder])
        if code:
            return code, []
        paths = [Path(folder) / f"rank_{rank}.json" for rank in range(nodes.most * nodes.ranks)]
        missing = [path.name for path in paths if not path.exists()]
        if missing:
            raise LaunchError(f"the world succeeded, but wrote no {', '.join(missing)}")
        return 0, [read_notes(path, what) for path in paths]

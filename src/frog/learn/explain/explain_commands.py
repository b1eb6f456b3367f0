"""`frog explain barrier|rendezvous|all-reduce`: run a small real world and report which rank waited for which."""

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
        help="show on a few real ranks what a barrier, a rendezvous or an all-reduce does",
        description="Start a few real ranks with different amounts of work, and chart which rank waited for "
        "which: frog explain barrier --nproc 4",
    )
    parser.add_argument("what", choices=WHATS)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", type=int, metavar="N", help="number of ranks, on one node (default: 4)")
    size.add_argument("--nodes", metavar="NODESxRANKS", help="simulated nodes: 2x2 means two nodes with two ranks each")
    parser.set_defaults(handler=_explain)


def _explain(args: argparse.Namespace) -> int:
    from frog.learn.explain.story import write_story

    nodes = read_nodes(args.nproc, args.nodes)
    code, notes = run_notes(args.what, nodes)
    if code == 0:
        print(write_story(args.what, notes))
    return code


def read_nodes(nproc: int | None, nodes: str | None) -> Nodes:
    """Parse the world's size. Raises UsageError if it has one rank only, or too many for a chart."""
    from frog.launch.nodes import Nodes, parse_nodes

    num_ranks = 4 if nproc is None else nproc
    layout = parse_nodes(nodes) if nodes else Nodes(1, 1, num_ranks)
    if layout.elastic:
        raise UsageError(f"--nodes {nodes}: this world has a fixed size", "--nodes 2x2")
    world_size = layout.most * layout.ranks
    if not 2 <= world_size <= _MOST:
        raise UsageError(
            f"a world of {world_size}: must have 2 to {_MOST} ranks, so that ranks can wait for each other", "--nproc 4"
        )
    return layout


def run_notes(what: str, nodes: Nodes) -> tuple[int, list[dict[str, Any]]]:
    """Run the world. Return its exit code and each rank's notes, by rank."""
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
            raise LaunchError(f"the world succeeded but did not write {', '.join(missing)}")
        return 0, [read_notes(path, what) for path in paths]

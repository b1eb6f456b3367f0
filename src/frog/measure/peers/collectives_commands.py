"""`frog collectives`: measure collective libraries, and grade other people's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from frog.core.schema import shortened
from frog.core.units import parse_whole

if TYPE_CHECKING:
    _Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

EXAMPLES = {"python": "ring.py", "rust": "ring.rs"}
_MOST_WORLD = 8
_ONCE = {"threads": 1, "restarts": 0, "replace": 0, "deadline": 60.0}
"""World settings for a measurement."""


def add_collectives_parser(commands: _Parsers) -> None:
    """Add `frog collectives`."""
    parser = commands.add_parser(
        "collectives",
        help="measure Frog's collectives, or grade a collective library in any language",
        description="Collective libraries, measured and graded.",
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_check(actions)
    _add_bench(actions)
    _add_tune(actions)
    example = actions.add_parser(
        "example",
        help="print an example peer",
        description="Print a minimal peer that passes the checks: a ring.",
    )
    example.add_argument("language", choices=sorted(EXAMPLES))
    example.set_defaults(handler=_example)


def _add_check(actions: _Parsers) -> None:
    parser = actions.add_parser(
        "check",
        help="grade a collective library",
        description="Start copies of a program as the ranks of small worlds, give them buffers, and check their "
        "results, the traffic on each link, and their reaction when a peer dies. docs/measure/collectives.md describes "
        "the interface.",
    )
    parser.add_argument("--peer", required=True, metavar="COMMAND", help='command for one rank, e.g. "python ring.py"')
    parser.add_argument(
        "--operations",
        type=_operations,
        default=("all_reduce",),
        metavar="NAMES",
        help="any of all_reduce,broadcast,all_gather,reduce_scatter (default: all_reduce)",
    )
    parser.add_argument(
        "--world", type=_worlds, metavar="SIZES", help="world sizes, 2 to 8, such as 2,3,4 (the default)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        type=_check_name,
        metavar="CHECK",
        help="run only this check; repeatable",
    )
    parser.add_argument("--exit-first", action="store_true", help="stop at the first check that rejects")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every rank's files and output here")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the inputs, to repeat a check")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.set_defaults(handler=_check)


def _add_bench(actions: _Parsers) -> None:
    from frog.measure.peers.measurement import CONTENDERS, OPERATIONS

    parser = actions.add_parser(
        "bench",
        help="measure the speed of collectives on this machine",
        description="Time collectives in a world on this machine: medians of alternating rounds of all contenders. "
        "algbw is bytes over time; busbw is the resulting load of each link, as defined by nccl-tests.",
    )
    _add_world(parser)
    parser.add_argument(
        "--against",
        type=lambda text: _names(text, [name for name in CONTENDERS if name != "frog"]),
        default=(),
        metavar="NAMES",
        help="other contenders, any of gloo,tcp,mpi: torch's gloo; Frog without shared memory; Open MPI, if installed",
    )
    parser.add_argument(
        "--operations",
        type=lambda text: _names(text, OPERATIONS),
        default=("all_reduce",),
        metavar="NAMES",
        help=f"any of {','.join(OPERATIONS)} (default: all_reduce)",
    )
    parser.add_argument(
        "--sizes", type=_sizes, default="4KiB,256KiB,4MiB,64MiB", metavar="SIZES", help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="default: as many as take about half a second")
    parser.add_argument("--json", action="store_true", help="print the measurements as JSON")
    parser.add_argument("--report", type=Path, metavar="FILE.html", help="also plot the results over size, on a page")
    parser.set_defaults(handler=_bench, **_ONCE)


def _add_tune(actions: _Parsers) -> None:
    parser = actions.add_parser(
        "tune",
        help="measure latency and bandwidth on this machine, and save them",
        description="Time single messages between two ranks. From then on, the result determines which messages use "
        "the ring algorithm on this machine. Without it, default constants apply.",
    )
    _add_world(parser)
    parser.add_argument("--rounds", type=int, metavar="N", help="default: as many as take about half a second")
    parser.set_defaults(handler=_tune, **_ONCE)


def _add_world(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", type=int, metavar="N", help="number of ranks, on one node")
    size.add_argument("--nodes", metavar="NODESxRANKS", help="simulated nodes: 2x2 is two nodes of two ranks")
    parser.add_argument(
        "--network", metavar="LINK", help='a slow network between them: "rate=100mbit delay=20ms" (Linux)'
    )


def _tune(args: argparse.Namespace) -> int:
    from frog.measure.peers.tune import tune

    return tune(args)


def _bench(args: argparse.Namespace) -> int:
    from frog.measure.peers.bench import bench

    return bench(args)


def _sizes(text: str) -> tuple[int, ...]:
    from frog.measure.peers.bench import sizes

    return sizes(text)


def _operations(text: str) -> tuple[str, ...]:
    from frog.measure.peers.calls import OPERATIONS

    return _names(text, OPERATIONS)


def _check_name(text: str) -> str:
    from frog.measure.peers.checks import CHECKS

    return _names(text, [check.name for check in CHECKS])[0]


def _names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return names


def _worlds(text: str) -> tuple[int, ...]:
    sizes = tuple(parse_whole(word) or 0 for word in text.split(","))
    if not all(2 <= size <= _MOST_WORLD for size in sizes):
        raise argparse.ArgumentTypeError(f"{shortened(text)!r}: expected sizes from 2 to {_MOST_WORLD}, such as 2,3,4")
    return sizes


def _check(args: argparse.Namespace) -> int:
    from frog.measure.peers.check import check

    return check(args)


def _example(args: argparse.Namespace) -> int:
    print((Path(__file__).parent / "examples" / EXAMPLES[args.language]).read_text(), end="")
    return 0

"""`frog collectives`: measure collective libraries, and grade those of others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    _Parsers = argparse._SubParsersAction[argparse.ArgumentParser]

EXAMPLES = {"python": "ring.py", "rust": "ring.rs"}
_MOST_WORLD = 8


def add_collectives_parser(commands: _Parsers) -> None:
    """Add `frog collectives`."""
    parser = commands.add_parser(
        "collectives",
        help="grade a collective library from outside, in whatever language it is written",
        description="Collective libraries, measured and graded.",
    )
    actions = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_check(actions)
    example = actions.add_parser(
        "example",
        help="print a peer to begin with",
        description="Print a peer that passes: a ring, as short as it can be.",
    )
    example.add_argument("language", choices=sorted(EXAMPLES))
    example.set_defaults(handler=_example)


def _add_check(actions: _Parsers) -> None:
    parser = actions.add_parser(
        "check",
        help="grade somebody's collective library",
        description="Start copies of a program as the ranks of small worlds, hand them buffers, and judge their "
        "results, what they send over which link, and what they do when a peer dies. What the program is given is in "
        "docs/peers.md.",
    )
    parser.add_argument("--peer", required=True, metavar="COMMAND", help='starts one rank, such as "python ring.py"')
    parser.add_argument(
        "--operations",
        type=_operations,
        default=("all_reduce",),
        metavar="NAMES",
        help="all_reduce,broadcast,all_gather,reduce_scatter, or some of these (default: all_reduce)",
    )
    parser.add_argument(
        "--world", type=_worlds, metavar="SIZES", help="sizes of the worlds, 2 to 8, such as 2,3,4 (the default)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        type=_check_name,
        metavar="CHECK",
        help="this check alone; may be repeated",
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave every rank's files and output here")
    parser.add_argument("--seed", type=int, metavar="N", help="of the inputs, to repeat a check")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.set_defaults(handler=_check)


def _operations(text: str) -> tuple[str, ...]:
    from frog.gauge.calls import OPERATIONS

    return _names(text, OPERATIONS)


def _check_name(text: str) -> str:
    from frog.gauge.checks import CHECKS

    return _names(text, [check.name for check in CHECKS])[0]


def _names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return names


def _worlds(text: str) -> tuple[int, ...]:
    sizes = tuple(int(word) if word.isdecimal() else 0 for word in text.split(","))
    if not all(2 <= size <= _MOST_WORLD for size in sizes):
        raise argparse.ArgumentTypeError(f"{text!r}: sizes from 2 to {_MOST_WORLD}, such as 2,3,4")
    return sizes


def _check(args: argparse.Namespace) -> int:
    from frog.gauge.check import check

    return check(args)


def _example(args: argparse.Namespace) -> int:
    print((Path(__file__).parent / "examples" / EXAMPLES[args.language]).read_text(), end="")
    return 0

"""What users type before a cell: `[0,2] --world 4 --nodes 2x2`, with the options of `frog run`."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import NoReturn

from frog.core.errors import UsageError
from frog.core.user_input import at_least
from frog.launch.cells.cell_launcher import WorldSettings
from frog.launch.nodes import parse_nodes

DEFAULT_RANKS = 2
_RANKS = re.compile(r"\s*\[([^\]]*)\]")
_OPTION = re.compile(r"\s*(--[a-z][a-z-]*)(?:=|\s+|$)")
_FLAGS = ("--allow-errors",)


@dataclass(frozen=True)
class CellOptions:
    """Options of one cell."""

    ranks: tuple[int, ...] | None
    """None: all ranks."""
    settings: WorldSettings | None
    """None: the world that runs, or the default one."""
    allow_errors: bool
    code: str
    """What follows the options."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "%%ranks [0,2] --world 4")


def add_cell_world_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a world: those of `frog run` that describe its ranks."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--nproc", "--world", type=at_least(1), metavar="N", help="number of ranks, on one node")
    size.add_argument("--nodes", metavar="NODESxRANKS", help="simulated nodes: 2x4 is two of four ranks each")
    parser.add_argument(
        "--threads", type=at_least(1), metavar="N", help="threads per rank; default: the cores divided by the ranks"
    )
    parser.add_argument(
        "--simulate-gpus", type=at_least(1), metavar="N", help="N simulated GPUs per node: CUDA and NCCL on the CPU"
    )
    parser.add_argument(
        "--network", metavar="LINK", help='simulate a slow network between the nodes: "rate=100mbit delay=20ms" (Linux)'
    )


def read_settings(args: argparse.Namespace, default: int | None = None) -> WorldSettings | None:
    """Return the world that options describe; None if they describe none, and there is no default number of ranks.

    Raises:  UsageError for invalid or contradictory options.
    """
    given = any((args.nproc, args.nodes, args.threads, args.simulate_gpus, args.network))
    if not given and default is None:
        return None
    nodes, nproc = 1, args.nproc or default or DEFAULT_RANKS
    if args.nodes is not None:
        parsed = parse_nodes(args.nodes)
        if parsed.elastic:
            raise UsageError(f"--nodes {args.nodes}: the ranks of a cell world stay the same", "--nodes 2x2")
        nodes, nproc = parsed.most, parsed.ranks
    if args.network:
        from frog.launch.network import parse_network

        if nodes < 2:
            raise UsageError("--network needs several nodes: a single node has no link", "--nodes 2x2")
        parse_network(args.network)
    return WorldSettings(
        nodes=nodes, nproc=nproc, threads=args.threads, simulate_gpus=args.simulate_gpus, network=args.network
    )


def parse_line(line: str) -> CellOptions:
    """Parse the line of a magic: ranks in brackets, then options, then code.

    Raises:  UsageError for an option that does not exist, or a wrong value.
    """
    ranks, rest = split_ranks(line)
    words: list[str] = []
    while (match := _OPTION.match(rest)) is not None:
        words.append(match[1])
        rest = rest[match.end() :]
        if match[1] not in _FLAGS and rest:
            value, rest = _first_word(rest)
            words.append(value)
    parser = _Parser(prog="%%ranks", add_help=False, allow_abbrev=False)
    parser.register("type", int, int)
    add_cell_world_arguments(parser)
    parser.add_argument("--allow-errors", action="store_true")
    args = parser.parse_args(words)
    return CellOptions(ranks, read_settings(args), args.allow_errors, rest.strip())


def _first_word(text: str) -> tuple[str, str]:
    """Split off the first word, which may be in quotes."""
    match = re.match(r"""\s*("[^"]*"|'[^']*'|\S+)""", text)
    if match is None:
        return "", ""
    return shlex.split(match[1])[0] if match[1] else "", text[match.end() :]


def split_ranks(line: str) -> tuple[tuple[int, ...] | None, str]:
    """Split `[0,2] code` into the ranks and the rest; the ranks are None if the line does not begin with brackets."""
    match = _RANKS.match(line)
    if match is None:
        return None, line
    return parse_ranks(match[1]), line[match.end() :].lstrip(" ")


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse `0,2`, `0-3` or `0 2`.

    Raises:  UsageError for anything else.
    """
    ranks: list[int] = []
    words = [word for word in re.split(r"[,\s]+", text.strip()) if word]
    for word in words:
        span = re.fullmatch(r"(\d{1,5})(?:[-:](\d{1,5}))?", word)
        if span is None:
            raise UsageError(f"[{text}]: {word!r} is not a rank", "[0,2] or [0-3]")
        ranks += range(int(span[1]), int(span[2] or span[1]) + 1)
    if not ranks:
        raise UsageError("[]: names no rank", "[0,2], or leave out the brackets for all ranks")
    return tuple(dict.fromkeys(ranks))

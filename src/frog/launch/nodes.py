"""Simulated nodes: their number, ranks, names and addresses."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from frog.core.errors import UsageError


@dataclass(frozen=True)
class Nodes:
    """A world's nodes: from `least` to `most` of them (equal for a fixed size), with `ranks` on each."""

    least: int
    most: int
    ranks: int

    @property
    def elastic(self) -> bool:
        return self.least < self.most

    @property
    def several(self) -> bool:
        return self.most > 1

    def host(self, node_rank: int) -> str:
        return f"node{node_rank}"

    def address(self, node_rank: int) -> str:
        """Return a node's loopback address: 127.0.0.1 for node 0, and so on. macOS only has the first.

        torchrun orders nodes by their addresses as text, so with ten or more nodes the last number has three digits.
        """
        if not sys.platform.startswith("linux"):
            return "127.0.0.1"
        return f"127.0.0.{node_rank + (1 if self.most < 10 else 101)}"


def parse_nodes(text: str) -> Nodes:
    """Parse `2x4` (two nodes with four ranks each), `3` (three with one), `1:3x2` (one to three with two each).

    Raises:  UsageError for anything else.
    """
    match = re.fullmatch("(?:([0-9]{1,4}):)?([0-9]{1,4})(?:x([0-9]{1,4}))?", text)
    if match is None:
        raise UsageError(f"--nodes {text}: expected NODESxRANKS", "--nodes 2x4, or --nodes 1:3x2 to shrink and grow")
    most, ranks = int(match[2]), int(match[3] or 1)
    least = int(match[1]) if match[1] else most
    if least < 1 or ranks < 1 or least > most:
        raise UsageError(f"--nodes {text}: needs at least one node and one rank per node, and the smaller number first")
    if most > 99:
        raise UsageError(f"--nodes {text}: at most 99 simulated nodes")
    return Nodes(least, most, ranks)


def world_table(worlds: Sequence[dict[str, Any]], hosts: dict[int, str]) -> str:
    """Format the environment of each node's ranks as a table, from the `world` events of one attempt."""
    head = ("node", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    rows = [
        (
            hosts[world["node"]],
            str(world["node_rank"]),
            _span(world["ranks"]),
            _span(range(len(world["ranks"]))),
            str(world["world_size"]),
            world["master_addr"],
            str(world["master_port"]),
        )
        for world in sorted(worlds, key=lambda world: int(world["node_rank"]))
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows])
    return "\n".join(line.rstrip() for line in lines)


def _span(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"

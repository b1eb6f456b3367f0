"""The request and the result of a measurement of collectives: bandwidths as defined by nccl-tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frog.core.files import write_json

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
CONTENDERS = {
    "frog": "automatic choice: memory within a node, TCP between nodes",
    "tcp": "frog over TCP only",
    "gloo": "torch's own",
    "mpi": "Open MPI, automatic choice: memory",
}
LIMITS = {
    "memory": "copying the buffer, on all ranks at the same time",
    "sockets": "each rank sends the buffer to the next over a plain socket, all at the same time",
}


@dataclass(frozen=True)
class Request:
    """The measurements that the ranks should make."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Size of the whole buffer in bytes."""
    contenders: tuple[str, ...]
    rounds: int | None = None
    """None: as many as take about half a second."""
    steps: bool = False
    """True to time only a single doubling step of each all-reduce, for `tune`, without the limits."""

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


def read_request(path: Path) -> Request:
    """Read the output of `Request.write`."""
    known = json.loads(path.read_text())
    lists = {name: tuple(known.pop(name)) for name in ("operations", "sizes", "contenders")}
    return Request(**lists, rounds=known["rounds"], steps=known["steps"])


@dataclass(frozen=True)
class Row:
    """The median of an operation's rounds."""

    operation: str
    num_bytes: int
    contender: str
    time_s: float
    rounds: int

    @property
    def algorithm_bytes_per_s(self) -> float:
        """Size of the buffer over the time of a call."""
        return self.num_bytes / self.time_s

    def bus_bytes_per_s(self, num_ranks: int) -> float:
        """Load of each link with the best algorithm, comparable to the hardware's bandwidth.

        Source:  nccl-tests, doc/PERFORMANCE.md.
        """
        share = (num_ranks - 1) / num_ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0}.get(self.operation, share)
        return self.algorithm_bytes_per_s * factor


@dataclass(frozen=True)
class Limit:
    """The machine's own speed for a buffer of the same size, in the same run."""

    name: str
    num_bytes: int
    time_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.time_s


@dataclass(frozen=True)
class Result:
    """The measurements of a world."""

    num_ranks: int
    several_nodes: bool
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]

    @staticmethod
    def of(known: Mapping[str, Any]) -> Result:
        """Build a result from the output of `asdict`."""
        rows, limits = (Row(**row) for row in known["rows"]), (Limit(**fields) for fields in known["limits"])
        return Result(known["num_ranks"], known["several_nodes"], tuple(rows), tuple(limits))

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def operations(self) -> list[str]:
        return list(dict.fromkeys(row.operation for row in self.rows))

    def limit_name(self, contender: str) -> str:
        """Return the medium of a contender's bytes."""
        through_memory = contender == "mpi" or (contender == "frog" and not self.several_nodes)
        return "memory" if through_memory else "sockets"

    def share_of_limit(self, row: Row) -> float:
        """Return a row's bus bandwidth as a fraction of the machine's own for a buffer of this size."""
        name = self.limit_name(row.contender)
        limit = next(limit for limit in self.limits if (limit.name, limit.num_bytes) == (name, row.num_bytes))
        return row.bus_bytes_per_s(self.num_ranks) / limit.bytes_per_s

    def times_gloo(self, row: Row) -> float | None:
        """Return the speed relative to gloo; None if gloo was not measured, or for gloo itself."""
        size = row.operation, row.num_bytes
        gloo = next((r for r in self.rows if (r.operation, r.num_bytes) == size and r.contender == "gloo"), row)
        return None if gloo is row else gloo.time_s / row.time_s

"""What is to be measured of collectives, and what was: bandwidths as nccl-tests defines them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frog.core.files import write_json

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
CONTENDERS = {
    "frog": "as it chooses: memory inside a node, TCP between nodes",
    "tcp": "frog over TCP alone",
    "gloo": "torch's own",
    "mpi": "Open MPI as it chooses: memory",
}
LIMITS = {
    "memory": "copying the buffer, all ranks at once",
    "sockets": "each rank passes the buffer to the next, over a plain socket, all at once",
}


@dataclass(frozen=True)
class Request:
    """What the ranks are to measure."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of the whole buffer."""
    contenders: tuple[str, ...]
    rounds: int | None = None
    """None: as many as fit into half a second or so."""
    steps: bool = False
    """Whether each all-reduce is to be the single step of doubling, as `tune` needs it; then no limits are."""

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))


def read_request(path: Path) -> Request:
    """What `Request.write` wrote."""
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
        """Bytes of the buffer over the time of a call."""
        return self.num_bytes / self.time_s

    def bus_bytes_per_s(self, num_ranks: int) -> float:
        """What each link must carry for that, by the best algorithm: comparable to the hardware's.

        Source:  nccl-tests, doc/PERFORMANCE.md.
        """
        share = (num_ranks - 1) / num_ranks
        factor = {"all_reduce": 2 * share, "broadcast": 1.0}.get(self.operation, share)
        return self.algorithm_bytes_per_s * factor


@dataclass(frozen=True)
class Limit:
    """How fast the machine itself moved as many bytes, in the same run."""

    name: str
    num_bytes: int
    time_s: float

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / self.time_s


@dataclass(frozen=True)
class Result:
    """What a world has measured."""

    num_ranks: int
    several_nodes: bool
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]

    @staticmethod
    def of(known: Mapping[str, Any]) -> Result:
        """From what `asdict` made of one."""
        rows, limits = (Row(**row) for row in known["rows"]), (Limit(**one) for one in known["limits"])
        return Result(known["num_ranks"], known["several_nodes"], tuple(rows), tuple(limits))

    @property
    def contenders(self) -> list[str]:
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def operations(self) -> list[str]:
        return list(dict.fromkeys(row.operation for row in self.rows))

    def limit_name(self, contender: str) -> str:
        """What a contender's bytes go through."""
        through_memory = contender == "mpi" or (contender == "frog" and not self.several_nodes)
        return "memory" if through_memory else "sockets"

    def share_of_limit(self, row: Row) -> float:
        """How far a row's bus bandwidth comes up to what the machine itself does with a buffer of this size."""
        name = self.limit_name(row.contender)
        limit = next(one for one in self.limits if (one.name, one.num_bytes) == (name, row.num_bytes))
        return row.bus_bytes_per_s(self.num_ranks) / limit.bytes_per_s

    def times_gloo(self, row: Row) -> float | None:
        """How many times as fast as gloo a row is; None where gloo was not measured, and of gloo itself."""
        same = [one for one in self.rows if (one.operation, one.num_bytes) == (row.operation, row.num_bytes)]
        gloo = next((one for one in same if one.contender == "gloo"), row)
        return None if gloo is row else gloo.time_s / row.time_s

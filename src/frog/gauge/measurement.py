"""What is to be measured of collectives, and what was: bandwidths as nccl-tests defines them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from frog.core.files import write_json

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
CONTENDERS = {
    "frog": "as it chooses: memory inside a node, TCP between nodes",
    "tcp": "frog over TCP alone",
    "gloo": "torch's own",
}


@dataclass(frozen=True)
class Request:
    """What the ranks are to measure."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Bytes of the whole buffer."""
    contenders: tuple[str, ...]
    rounds: int | None = None
    """None: as many as fit into a second or so."""
    steps: bool = False
    """Whether each all-reduce is to be the single step of doubling, as `tune` needs it."""

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

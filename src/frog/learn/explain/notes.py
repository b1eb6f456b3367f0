"""The notes that each rank of `frog explain` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from frog.core.errors import LaunchError
from frog.core.schema import Name, Natural, Positive, Typed, read_typed


class _Notes(Typed, frozen=True):
    rank: Natural
    world_size: Positive
    local_rank: Natural
    ranks_per_node: Positive
    node_rank: Natural
    host: Name
    pid: Positive
    rendezvous_address: Name
    listener: Name
    began_ns: Natural
    num_products: Natural


class _Barrier(_Notes, frozen=True):
    came_ns: Natural
    left_ns: Natural


class _AllReduce(_Barrier, frozen=True):
    payload_bytes: Positive
    bytes_sent: Natural | None
    gave: float
    got: list[float]


class _Rendezvous(_Notes, frozen=True):
    knocked_ns: Natural
    reached_ns: Natural
    arrival: Positive
    complete_ns: Natural
    joined_ns: Natural


_KINDS: dict[str, type[_Notes]] = {"barrier": _Barrier, "all-reduce": _AllReduce, "rendezvous": _Rendezvous}


def read_notes(path: Path, what: str) -> dict[str, Any]:
    """Read a rank's notes on `what`. Raises LaunchError if the file does not contain valid notes."""
    return msgspec.structs.asdict(read_typed(path, _KINDS[what], "run frog explain again", LaunchError))

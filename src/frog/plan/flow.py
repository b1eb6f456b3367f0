"""The bytes of one collective: its payload, and the bytes that leave a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

_RING_SHARE: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1,
    "reduce": lambda n: 1,
    "send": lambda n: 1,
    "send_recv": lambda n: 1,
    "recv": lambda n: 0,
    "barrier": lambda n: 0,
}


def wire_bytes(op: str, payload_bytes: float, axis_size: int) -> float:
    """Return the bytes that leave one rank for a collective over `axis_size` ranks.

    Units:   bytes. The payload is the full tensor, before or after, as in the events.
    Assumes: ring algorithms, which send the minimum. All-reduce is reduce-scatter, then all-gather. In a broadcast
             or a reduction to one rank, each rank forwards the whole tensor. An all-to-all keeps a rank's own slice.
    Source:  Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
    """
    return payload_bytes * _RING_SHARE[op](axis_size) if axis_size > 1 else 0.0


@dataclass(frozen=True)
class Flow:
    """The traffic of one operation on one axis in a step."""

    axis: str
    op: str
    size: int
    """Ranks on the axis."""
    payload_bytes: float
    num_messages: int
    what: str
    """Name of the data."""

    @property
    def wire_bytes(self) -> float:
        """Bytes that leave this rank."""
        return wire_bytes(self.op, self.payload_bytes, self.size)


def merge(flows: Iterable[Flow]) -> list[Flow]:
    """Merge flows of the same axis and operation, in order of first occurrence; axes of one rank send nothing."""
    found: dict[tuple[str, str], Flow] = {}
    for flow in flows:
        if flow.size == 1 or not flow.num_messages:
            continue
        key = flow.axis, flow.op
        if (before := found.get(key)) is None:
            found[key] = flow
            continue
        words = before.what.split(", ")
        found[key] = replace(
            before,
            payload_bytes=before.payload_bytes + flow.payload_bytes,
            num_messages=before.num_messages + flow.num_messages,
            what=", ".join([*words, flow.what] if flow.what not in words else words),
        )
    return list(found.values())

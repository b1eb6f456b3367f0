"""The observations of a session: plain data, the only input of its judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frog.measure.peers.buffers import Array, Unreadable
from frog.measure.peers.calls import Call

Pair = tuple[int, int]
"""A link from one rank to another."""


@dataclass(frozen=True)
class Shape:
    """A link's way of forwarding bytes: immediately, unless one of these is set."""

    bytes_per_s: float | None = None
    delay_s: float = 0.0
    in_pieces: bool = False
    """Forward a few bytes at a time, with pauses between them."""


@dataclass(frozen=True)
class Fault:
    """A fault, injected once this many bytes went from one rank to the other (`kill`: to all others)."""

    kind: Literal["kill", "cut", "reset"]
    pair: Pair
    """For a kill: the rank, twice."""
    after_bytes: int

    def __str__(self) -> str:
        first, second = self.pair
        if self.kind == "kill":
            return f"rank {first} was killed after the first {self.after_bytes:,} bytes it sent"
        what = "fell silent" if self.kind == "cut" else "was reset"
        return f"the link between rank {first} and rank {second} {what} after {self.after_bytes:,} bytes"


@dataclass(frozen=True)
class Plan:
    """A planned session: N copies, their calls, and the properties of their links."""

    name: str
    world: int
    calls: tuple[Call, ...]
    shapes: Mapping[Pair, Shape] = field(default_factory=dict)
    """Links with special properties."""
    fault: Fault | None = None
    timeout_s: float = 30.0
    """The peers' timeout: a peer that is silent for this long counts as lost."""


@dataclass(frozen=True)
class Breach:
    """A limit that was exceeded, which ended the session."""

    id: str
    observed: str


@dataclass(frozen=True)
class RankEnd:
    """The end of one copy."""

    code: int | None
    """None: it did not end on its own, and was killed at the end of the session."""
    at_s: float
    """Seconds since the start of the session."""
    lost: int | None = None
    """The rank that it reports as lost."""
    output: str = ""
    """The end of its output."""


@dataclass(frozen=True)
class Observed:
    """The observations of a session."""

    plan: Plan
    inputs: list[list[Array]]
    """Inputs, by call and rank."""
    results: list[list[Array | Unreadable]]
    """Results, by call and rank."""
    ends: list[RankEnd]
    sent: dict[Pair, int]
    """Bytes that each rank sent to each other rank."""
    connections: dict[Pair, int]
    """Number of connections from each rank to each other rank."""
    moved_s: float
    """Time from the first byte sent to the last byte received."""
    changed: list[Pair] = field(default_factory=list)
    """Inputs whose file was modified: (call, rank)."""
    left: list[int] = field(default_factory=list)
    """Ranks that ended and left running processes behind."""
    breach: Breach | None = None
    fault_at_s: float | None = None

    @property
    def world(self) -> int:
        return self.plan.world

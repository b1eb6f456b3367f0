"""What was seen of a session: plain data, from which alone it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from frog.peers.buffers import Array, Unreadable
from frog.peers.calls import Call

Pair = tuple[int, int]
"""From one rank to another."""


@dataclass(frozen=True)
class Shape:
    """How a link passes bytes on: at once, unless one of these is set."""

    bytes_per_s: float | None = None
    delay_s: float = 0.0
    in_pieces: bool = False
    """A few bytes at a time, with pauses between them."""


@dataclass(frozen=True)
class Fault:
    """What is done to a world once so many bytes went from one rank to the other (`kill`: to all others)."""

    kind: Literal["kill", "cut", "reset"]
    pair: Pair
    """Of a kill: the rank, twice."""
    after_bytes: int

    def __str__(self) -> str:
        first, second = self.pair
        if self.kind == "kill":
            return f"rank {first} was killed after the first {self.after_bytes:,} bytes it sent"
        what = "fell silent" if self.kind == "cut" else "was reset"
        return f"the link between rank {first} and rank {second} {what} after {self.after_bytes:,} bytes"


@dataclass(frozen=True)
class Plan:
    """A session to be run: N copies, what each is asked, and what their links are like."""

    name: str
    world: int
    calls: tuple[Call, ...]
    shapes: Mapping[Pair, Shape] = field(default_factory=dict)
    """Of links that are not plain."""
    fault: Fault | None = None
    timeout_s: float = 30.0
    """What the peers are given: a peer that is silent for so long is lost."""


@dataclass(frozen=True)
class Breach:
    """A limit that was met, which ended the session."""

    id: str
    observed: str


@dataclass(frozen=True)
class RankEnd:
    """How one copy ended."""

    code: int | None
    """None: it did not end by itself, and was killed at the end of the session."""
    at_s: float
    """Seconds since the session began."""
    lost: int | None = None
    """The rank that it says it lost."""
    output: str = ""
    """The end of what it printed."""


@dataclass(frozen=True)
class Observed:
    """What came of a session."""

    plan: Plan
    inputs: list[list[Array]]
    """By call and rank."""
    results: list[list[Array | Unreadable]]
    """By call and rank."""
    ends: list[RankEnd]
    sent: dict[Pair, int]
    """Bytes that one rank sent to another."""
    connections: dict[Pair, int]
    """How often one rank connected to another."""
    moved_s: float
    """From the first byte that was sent to the last that arrived."""
    changed: list[Pair] = field(default_factory=list)
    """Inputs whose file was changed: (call, rank)."""
    left: list[int] = field(default_factory=list)
    """Ranks of which processes went on after their end."""
    breach: Breach | None = None
    fault_at_s: float | None = None

    @property
    def world(self) -> int:
        return self.plan.world

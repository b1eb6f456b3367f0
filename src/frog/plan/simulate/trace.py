"""The phases and collectives of a simulation: times by rank, for an events folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from frog.core.errors import UsageError
from frog.core.runs.vocabulary import Phase
from frog.plan.simulate.disturbances import Floats


@dataclass(frozen=True)
class Span:
    """A phase on all ranks of a stage; infinite ends never came. Times have shape (D,)."""

    step: int
    phase: Phase
    micro: int
    start: Floats
    end: Floats


@dataclass(frozen=True)
class Call:
    """A collective or message on all ranks of a stage, as `Span`. Times have shape (D,), or (D, I) if ranks differ."""

    step: int
    phase: Phase
    op: str
    axis: str
    payload_bytes: int
    start: Floats
    end: Floats
    wait: Floats
    """Time that the rank's computation waited for it."""


MOST_EVENTS = 2_000_000


@dataclass
class Trace:
    """All of them, in each stage's order."""

    stages: list[list[Span | Call]]
    num_ranks: int
    """Ranks of a stage."""
    step_ends: list[Floats] = field(default_factory=list)
    """The end of each step by stage and replica."""
    num_events: int = 0

    def add(self, stage: int, record: Span | Call) -> None:
        """Record a phase or collective. Raises UsageError beyond what a folder can hold."""
        self.num_events += self.num_ranks
        if self.num_events > MOST_EVENTS:
            raise UsageError(
                f"--to: more than {MOST_EVENTS:,} events",
                "fewer --steps, GPUs or micro-batches; without --to, any number can be simulated",
            )
        self.stages[stage].append(record)

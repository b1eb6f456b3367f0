"""What a run's events amount to: the steps that count, as arrays, over all segments of the run.

A run that was killed and resumed takes some steps again, perhaps in another world. A segment is what lies between two
starts of rank 0. An event counts if no later segment began before its step: so the steps of a dead world that were
taken again drop out on every rank, also on ranks that the new world does not have.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frog.core.runfolder import RunFolder
from frog.events import RankEvents, read_rank
from frog.events.read import Event
from frog.events.schema import PHASES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SCALARS = (
    "loss",
    "loss_mean",
    "grad_norm_local",
    "grad_norm",
    "learning_rate",
    "tokens_per_s",
    "mfu",
    "memory_bytes",
    "loss_scale",
    "skipped",
)
"""The numbers of a step event that are kept; NaN where a step has none. `skipped` is 1 or 0, in fp16 alone."""

_SAME_CLOCK_S = 0.2


@dataclass
class Segment:
    """One start of the run, until it ended or was started again."""

    from_step: int
    """Steps that were already taken when it began."""
    until_step: int | None
    """Last step of it that counts; None if no later segment took steps again."""
    world_size: int
    hosts: list[str]
    device: str
    threads: int | None
    unix_ns: int
    num_retaken: int = 0
    """Steps that this segment took again after an earlier one."""


@dataclass
class Spans:
    """The phases of one rank, one entry a span."""

    segment: Ints
    step: Ints
    phase: Ints
    """Index into PHASES."""
    micro: Ints
    start_ns: Ints
    end_ns: Ints


@dataclass
class Collectives(Spans):
    """The collectives of one rank, one entry each: `phase` is an index into `ops`, `micro` the payload in bytes."""

    axis: Ints
    """Index into `axes`."""
    wait_ns: Ints
    """How long the rank's own thread was blocked."""


@dataclass
class RankHistory:
    """What one rank did in the steps that count."""

    rank: int
    starts: dict[int, Event]
    """Its start event in each segment in which it took part."""
    steps: Ints
    scalars: dict[str, Floats]
    sample_ids: list[list[int]]
    end_ns: Ints
    segment: Ints
    spans: Spans
    collectives: Collectives
    ops: list[str]
    errors: list[Event]
    evals: dict[int, Event]
    samples: dict[int, Event]
    checkpoints: dict[int, Event]
    commits: dict[int, Event]
    num_torn_lines: int
    axes: list[str] = field(default_factory=list)
    """The mesh axes of its collectives."""
    memory: dict[int, Event] = field(default_factory=dict)


@dataclass
class History:
    """All that a run's events say, with the steps that were taken twice kept apart."""

    segments: list[Segment]
    ranks: dict[int, RankHistory] = field(default_factory=dict)

    @property
    def main(self) -> RankHistory | None:
        """The rank that speaks for all: rank 0, or the lowest that left events."""
        return self.ranks[min(self.ranks)] if self.ranks else None

    @property
    def num_torn_lines(self) -> int:
        return sum(rank.num_torn_lines for rank in self.ranks.values())

    def clock_offset_ns(self, rank: int, segment: int) -> int:
        """What to add to a rank's monotonic time to get Unix time.

        Assumes: two ranks whose offsets agree within 0.2 s are on one machine and share its monotonic clock, as
            pretended nodes do; machines are set to the same time.
        """
        own = _offset_ns(self.ranks[rank].starts.get(segment))
        main = _offset_ns(self.main.starts.get(segment)) if self.main else own
        return main if abs(own - main) < _SAME_CLOCK_S * 1e9 else own


def read_history(folder: RunFolder) -> History:
    """Read the events of all ranks, one rank at a time, and keep what counts."""
    ranks = folder.event_ranks()
    if not ranks:
        return History([])
    with _no_garbage_collection():
        events = read_rank(folder, ranks[0])
        segments = _segments(events)
        history = History(segments, {ranks[0]: _rank_history(events, segments)})
        for rank in ranks[1:]:
            # One rank's events at a time: they take a hundred times the memory of the arrays.
            del events
            events = read_rank(folder, rank)
            history.ranks[rank] = _rank_history(events, segments)
    for index, segment in enumerate(segments):
        starts = [rank.starts[index] for rank in history.ranks.values() if index in rank.starts]
        segment.hosts = list(dict.fromkeys(start["host"] for start in starts))
    return history


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Events are millions of small dicts without a cycle among them: looking for cycles took half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _offset_ns(start: Event | None) -> int:
    return int(start["unix_ns"]) - int(start["mono_ns"]) if start else 0


def _segments(main: RankEvents) -> list[Segment]:
    segments: list[Segment] = []
    last_step = 0
    for event in main.events:
        if event["event"] == "start":
            from_step = int(event["step"])
            for earlier in segments:
                earlier.until_step = min(from_step, from_step if earlier.until_step is None else earlier.until_step)
            segments.append(
                Segment(
                    from_step=from_step,
                    until_step=None,
                    world_size=event["world_size"],
                    hosts=[event["host"]],
                    device=event["device"],
                    threads=event["threads"],
                    unix_ns=event["unix_ns"],
                    num_retaken=max(0, last_step - from_step),
                )
            )
            last_step = from_step
        elif event["event"] == "step":
            last_step = max(last_step, event["step"])
    return segments or [Segment(0, None, 1, [], "", None, 0)]


def _segment_of(start: Event, segments: Sequence[Segment]) -> int:
    """The segment that a rank's start belongs to: of the same world and step, the one nearest in time."""

    def distance(index: int) -> tuple[bool, int]:
        segment = segments[index]
        same = segment.world_size == start["world_size"] and segment.from_step == start["step"]
        return not same, abs(segment.unix_ns - int(start["unix_ns"]))

    return min(range(len(segments)), key=distance)


def _rank_history(events: RankEvents, segments: Sequence[Segment]) -> RankHistory:
    starts: dict[int, Event] = {}
    kept: dict[str, list[tuple[int, Event]]] = {}
    current = 0
    for event in events.events:
        if event["event"] == "start":
            current = _segment_of(event, segments)
            starts[current] = event
            continue
        until_step = segments[current].until_step
        if until_step is None or event.get("step") is None or event["step"] <= until_step:
            kept.setdefault(event["event"], []).append((current, event))

    def last_by_step(kind: str) -> dict[int, Event]:
        return dict(sorted({event["step"]: event for _, event in kept.get(kind, [])}.items()))

    # `dict` keeps the later of two events of a step, should one segment hold two.
    steps = sorted({event["step"]: (segment, event) for segment, event in kept.get("step", [])}.items())
    collectives = kept.get("collective", [])
    ops = sorted({event["op"] for _, event in collectives})
    axes = sorted({event["axis"] for _, event in collectives})
    scalars = {name: np.array([_number(e.get(name)) for _, (_, e) in steps], np.float64) for name in SCALARS}
    scalars["skipped"][np.isnan(scalars["loss_scale"])] = np.nan
    return RankHistory(
        rank=events.rank,
        starts=starts,
        steps=np.array([step for step, _ in steps], np.int64),
        scalars=scalars,
        sample_ids=[event.get("sample_ids") or [] for _, (_, event) in steps],
        end_ns=np.array([event["end_ns"] for _, (_, event) in steps], np.int64),
        segment=np.array([segment for _, (segment, _) in steps], np.int64),
        spans=_spans(kept.get("span", []), "phase", {phase: i for i, phase in enumerate(PHASES)}, "micro"),
        collectives=_collectives(collectives, ops, axes),
        ops=ops,
        errors=[event for _, event in kept.get("error", [])],
        evals=last_by_step("eval"),
        samples=last_by_step("sample"),
        checkpoints=last_by_step("checkpoint"),
        commits=last_by_step("commit"),
        num_torn_lines=events.num_torn_lines,
        axes=axes,
        memory=last_by_step("memory"),
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _spans(events: list[tuple[int, Event]], kind: str, index: dict[str, int], extra: str) -> Spans:
    known = [(segment, event) for segment, event in events if event[kind] in index]

    def column(values: Iterator[int]) -> Ints:
        return np.fromiter(values, np.int64, len(known))

    return Spans(
        segment=column(segment for segment, _ in known),
        step=column(event["step"] for _, event in known),
        phase=column(index[event[kind]] for _, event in known),
        micro=column(event[extra] for _, event in known),
        start_ns=column(event["start_ns"] for _, event in known),
        end_ns=column(event["end_ns"] for _, event in known),
    )


def _collectives(events: list[tuple[int, Event]], ops: Sequence[str], axes: Sequence[str]) -> Collectives:
    """Runs of before collectives could overlap have no `wait_ns`: their ranks waited all the time."""
    spans = _spans(events, "op", {op: i for i, op in enumerate(ops)}, "payload_bytes")
    index = {axis: i for i, axis in enumerate(axes)}
    waits = (event.get("wait_ns", event["end_ns"] - event["start_ns"]) for _, event in events)
    return Collectives(
        **vars(spans),
        axis=np.fromiter((index[event["axis"]] for _, event in events), np.int64, len(events)),
        wait_ns=np.fromiter(waits, np.int64, len(events)),
    )

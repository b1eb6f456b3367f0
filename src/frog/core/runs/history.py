"""A run's events as arrays: the effective steps of all segments.

A run that was killed and resumed repeats some steps, perhaps in another world. A segment is an attempt in which the
main rank wrote its start event. An event counts if no later segment began before its step. So every rank drops repeated
steps of an earlier world, even a rank that the new world does not have.

Reads one rank at a time: the events of a long run do not fit into memory, its arrays do.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from frog.core.runs.attempts import Attempt, Worker, cut
from frog.core.runs.changes import Change, find_changes
from frog.core.runs.event_schema import (
    CheckpointEvent,
    CollectiveEvent,
    CommitEvent,
    ErrorEvent,
    EvalEvent,
    EventOfStep,
    MemoryEvent,
    SampleEvent,
    SpanEvent,
    StartEvent,
    StepEvent,
)
from frog.core.runs.folder import RunFolder
from frog.core.runs.read import EventList, read_rank
from frog.core.runs.run import RecordedRun, assemble
from frog.core.runs.vocabulary import PHASES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
S = TypeVar("S", bound=EventOfStep)

SCALARS = (
    "loss",
    "loss_mean",
    "grad_norm_local",
    "grad_norm",
    "learning_rate",
    "tokens",
    "tokens_per_s",
    "mfu",
    "memory_bytes",
    "loss_scale",
    "skipped",
)
"""Numbers of a step event; NaN if absent. `skipped` is 1 or 0, only in fp16."""

_PHASE_INDEX = {phase: index for index, phase in enumerate(PHASES)}
_SAME_CLOCK_S = 0.2


@dataclass
class Segment:
    """One start of the run, until it ended or restarted."""

    from_step: int
    """Steps already completed when it began."""
    until_step: int | None
    """Its last step that counts; None if no later segment repeated steps."""
    world_size: int
    hosts: list[str]
    device: str
    unix_ns: int
    num_retaken: int = 0
    """Number of steps of earlier segments that this one repeated."""
    change: Change | None = None
    """The membership change that began it, if processes of the previous segment continued."""

    @property
    def counts(self) -> bool:
        """True if at least one of its steps may count."""
        return self.until_step is None or self.until_step > self.from_step


@dataclass
class Spans:
    """The phases of one rank, one entry per span."""

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
    """Time that the rank's own thread was blocked."""


@dataclass
class RankHistory:
    """One rank's events in the steps that count."""

    rank: int
    starts: dict[int, StartEvent]
    """Its start event in each of its segments."""
    steps: Ints
    scalars: dict[str, Floats]
    sample_ids: list[list[int]]
    end_ns: Ints
    segment: Ints
    """Segment of each step."""
    spans: Spans
    collectives: Collectives
    ops: list[str]
    """The operations of its collectives."""
    axes: list[str]
    """The mesh axes of its collectives."""
    errors: list[ErrorEvent] = field(default_factory=list)
    evals: dict[int, EvalEvent] = field(default_factory=dict)
    samples: dict[int, SampleEvent] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointEvent] = field(default_factory=dict)
    commits: dict[int, CommitEvent] = field(default_factory=dict)
    memory: dict[int, MemoryEvent] = field(default_factory=dict)


@dataclass
class History:
    """All events of a run, without repeated steps."""

    run: RecordedRun
    """The run without events of steps, spans and collectives, which are in the arrays."""
    segments: list[Segment]
    ranks: dict[int, RankHistory] = field(default_factory=dict)

    @functools.cached_property
    def main(self) -> RankHistory | None:
        """History of the main rank: rank 0, or the lowest rank with events. Another rank supplies steps that the main
        rank was lost in.
        """
        ranks = [own for _, own in sorted(self.ranks.items())]
        return functools.reduce(_with_steps_of, ranks[1:], ranks[0]) if ranks else None

    @property
    def last_segment(self) -> int | None:
        """Index of the segment of the last step; None without steps."""
        return int(self.main.segment[-1]) if self.main is not None and len(self.main.segment) else None

    def ranks_to_draw(self, most: int = 16) -> list[int]:
        """Return the ranks that a view draws individually: all, or `most` from the first to the last."""
        ranks = sorted(self.ranks)
        if len(ranks) <= most:
            return ranks
        return [ranks[round(i * (len(ranks) - 1) / (most - 1))] for i in range(most)]

    def clock_offset_ns(self, rank: int, segment: int) -> int:
        """Return the offset from a rank's monotonic time to Unix time.

        Assumes: ranks whose offsets agree within 0.2 s are on one machine and share its monotonic clock, as simulated
            nodes do; the system clocks of different machines agree.
        """
        own = _offset_ns(self.ranks[rank].starts.get(segment))
        main = _offset_ns(self.main.starts.get(segment)) if self.main else own
        return main if abs(own - main) < _SAME_CLOCK_S * 1e9 else own


def read_history(folder: RunFolder) -> History:
    """Read the events of all ranks; keep those that count."""
    digests: dict[int, _RankDigest] = {}
    problems: list[str] = []
    for rank in folder.event_ranks():
        said = read_rank(folder, rank)
        problems += said.problems
        digests[rank] = _RankDigest(cut(rank, said.events))
        del said
    run = assemble(folder, [worker for own in digests.values() for worker in own.workers], problems)
    segments, segment_of = _segments(run, digests[min(digests)]) if digests else ([], {})
    ranks = {rank: _rank_history(rank, own, segments, segment_of) for rank, own in digests.items()}
    _fill_loss_mean(ranks.values())
    for index, segment in enumerate(segments):
        starts = [rank.starts[index] for rank in ranks.values() if index in rank.starts]
        segment.hosts = list(dict.fromkeys(start.host for start in starts))
    return History(run, segments, ranks)


def _fill_loss_mean(ranks: Collection[RankHistory]) -> None:
    """Set the mean loss of each step to the mean of the ranks' losses if no rank reports it, as with `frog.record`.

    If all recorded their tokens, each token counts once. It stays NaN in a step that some rank did not record.
    """
    if not ranks or any(np.isfinite(rank.scalars["loss_mean"]).any() for rank in ranks):
        return
    steps = functools.reduce(np.intersect1d, (rank.steps for rank in ranks))
    at = [np.searchsorted(rank.steps, steps) for rank in ranks]
    losses, tokens = (
        np.array([rank.scalars[name][own] for rank, own in zip(ranks, at, strict=True)]) for name in ("loss", "tokens")
    )
    mean = np.average(losses, axis=0, weights=np.where((tokens > 0).all(axis=0), tokens, 1.0))
    for rank in ranks:
        rank.scalars["loss_mean"][np.searchsorted(rank.steps, steps)] = mean


@dataclass
class _Arrays:
    """The per-step events of a worker as arrays, one column per event."""

    steps: Ints
    """Step, end."""
    scalars: Floats
    sample_ids: list[list[int]]
    spans: Ints
    """Step, phase, micro-batch, start, end."""
    collectives: Ints
    """Step, operation, payload, start, end, axis, wait."""


class _RankDigest:
    """One rank's workers: per-step events as arrays, other events unchanged."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.ops: dict[str, int] = {}
        self.axes: dict[str, int] = {}
        self.workers: list[Worker] = []
        self.arrays: list[_Arrays] = []
        for worker in workers:
            self.arrays.append(self._to_arrays(worker))
            many = (SpanEvent, CollectiveEvent, StepEvent)
            self.workers.append(Worker([e for e in worker.events if not isinstance(e, many)], worker.rank))

    def _to_arrays(self, worker: Worker) -> _Arrays:
        ops, axes = self.ops, self.axes
        steps, spans, collectives = worker.of(StepEvent), worker.of(SpanEvent), worker.of(CollectiveEvent)
        return _Arrays(
            _rows(steps, lambda event: event.step, lambda event: event.end_ns),
            np.array([[_number(getattr(event, name)) for event in steps] for name in SCALARS], np.float64),
            [event.sample_ids for event in steps],
            _rows(
                spans,
                lambda event: event.step,
                lambda event: _PHASE_INDEX[event.phase],
                lambda event: event.micro,
                lambda event: event.start_ns,
                lambda event: event.end_ns,
            ),
            _rows(
                collectives,
                lambda event: event.step,
                lambda event: ops.setdefault(event.op, len(ops)),
                lambda event: event.payload_bytes,
                lambda event: event.start_ns,
                lambda event: event.end_ns,
                lambda event: axes.setdefault(event.axis, len(axes)),
                lambda event: event.wait_ns,
            ),
        )


def _rows(events: Sequence[S], *columns: Callable[[S], int]) -> Ints:
    return np.stack([np.fromiter(map(column, events), np.int64, len(events)) for column in columns])


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _with_steps_of(main: RankHistory, other: RankHistory) -> RankHistory:
    """Return a rank's history, with missing steps filled in from another rank."""
    new = ~np.isin(other.steps, main.steps)
    if not new.any():
        return main
    steps = np.concatenate([main.steps, other.steps[new]])
    order = np.argsort(steps)
    scalars = {name: np.concatenate([own, other.scalars[name][new]])[order] for name, own in main.scalars.items()}
    sample_ids = [*main.sample_ids, *itertools.compress(other.sample_ids, new)]
    return replace(
        main,
        steps=steps[order],
        scalars=scalars,
        sample_ids=[sample_ids[index] for index in order],
        end_ns=np.concatenate([main.end_ns, other.end_ns[new]])[order],
        segment=np.concatenate([main.segment, other.segment[new]])[order],
    )


def _offset_ns(start: StartEvent | None) -> int:
    return start.unix_ns - start.mono_ns if start else 0


def _segments(run: RecordedRun, main: _RankDigest) -> tuple[list[Segment], dict[int, int]]:
    """Return the segments, and the segment index of each worker, by `id`."""
    arrays = {id(worker): own for worker, own in zip(main.workers, main.arrays, strict=True)}
    segments: list[Segment] = []
    segment_of: dict[int, int] = {}
    last_step = 0
    changes = {change.after: change for change in find_changes(run.attempts)}
    for number, attempt in enumerate(run.attempts):
        worker = next((own for own in attempt.workers.values() if id(own) in arrays), None)
        taken = arrays[id(worker)].steps[0] if worker is not None else np.zeros(0, np.int64)
        if worker is None or (worker.start is None and not len(taken)):
            continue
        segment = _segment(attempt, worker, taken)
        segment.change = changes.get(number)
        for earlier in segments:
            if earlier.until_step is None or earlier.until_step > segment.from_step:
                earlier.until_step = segment.from_step
        segment.num_retaken = max(0, last_step - segment.from_step)
        last_step = int(taken.max(initial=segment.from_step))
        segment_of |= {id(own): len(segments) for own in attempt.workers.values()}
        segments.append(segment)
    return segments, segment_of


def _segment(attempt: Attempt, worker: Worker, taken: Ints) -> Segment:
    """Create a segment, even if the line with its start event is damaged."""
    start = worker.start
    if start is None:
        return Segment(int(taken.min()) - 1, None, max(1, len(attempt.ranks)), [], "", attempt.began_ns or 0)
    return Segment(start.step, None, start.world_size, [start.host], start.device, start.unix_ns)


def _rank_history(
    rank: int, digest: _RankDigest, segments: Sequence[Segment], segment_of: Mapping[int, int]
) -> RankHistory:
    starts: dict[int, StartEvent] = {}
    rest: list[EventOfStep] = []
    steps, scalars, sample_ids, spans, collectives = _empty()
    for worker, arrays in zip(digest.workers, digest.arrays, strict=True):
        index = segment_of.get(id(worker))
        if index is None:
            continue
        until_step = segments[index].until_step
        last = np.iinfo(np.int64).max if until_step is None else until_step
        if worker.start is not None:
            starts[index] = worker.start
        rest += [event for event in worker.events if event.step <= last]
        counts = arrays.steps[0] <= last
        steps.append(_with_segment(index, arrays.steps, counts))
        scalars.append(arrays.scalars[:, counts])
        sample_ids += [ids for ids, is_one in zip(arrays.sample_ids, counts, strict=True) if is_one]
        spans.append(_with_segment(index, arrays.spans, arrays.spans[0] <= last))
        collectives.append(_with_segment(index, arrays.collectives, arrays.collectives[0] <= last))
    segment, step, end_ns = np.concatenate(steps, axis=1)
    # If one segment has two lines for a step, the later one counts.
    unique, from_end = np.unique(step[::-1], return_index=True)
    kept = len(step) - 1 - from_end
    numbers = dict(zip(SCALARS, np.concatenate(scalars, axis=1)[:, kept], strict=True))
    numbers["skipped"][np.isnan(numbers["loss_scale"])] = np.nan
    return RankHistory(
        rank=rank,
        starts=starts,
        steps=unique,
        scalars=numbers,
        sample_ids=[sample_ids[index] for index in kept],
        end_ns=end_ns[kept],
        segment=segment[kept],
        spans=Spans(*np.concatenate(spans, axis=1)),
        collectives=Collectives(*np.concatenate(collectives, axis=1)),
        ops=list(digest.ops),
        axes=list(digest.axes),
        errors=[event for event in rest if isinstance(event, ErrorEvent)],
        evals=_last_by_step(rest, EvalEvent),
        samples=_last_by_step(rest, SampleEvent),
        checkpoints=_last_by_step(rest, CheckpointEvent),
        commits=_last_by_step(rest, CommitEvent),
        memory=_last_by_step(rest, MemoryEvent),
    )


def _empty() -> tuple[list[Ints], list[Floats], list[list[int]], list[Ints], list[Ints]]:
    """Return empty arrays of the right shape, for a rank that is in no segment."""
    return (
        [np.zeros((3, 0), np.int64)],
        [np.zeros((len(SCALARS), 0))],
        [],
        [np.zeros((6, 0), np.int64)],
        [np.zeros((8, 0), np.int64)],
    )


def _with_segment(index: int, rows: Ints, counts: NDArray[np.bool_]) -> Ints:
    kept = rows[:, counts]
    return np.concatenate([np.full((1, kept.shape[1]), index), kept])


def _last_by_step(events: Iterable[EventOfStep], kind: type[S]) -> dict[int, S]:
    return EventList([event for event in events if isinstance(event, kind)]).by_step(kind)

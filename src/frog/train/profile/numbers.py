"""The numbers of a profiled run: how each rank spent its time, from its trace and events. In microseconds per step.

A step's time is divided into parts that add up to it. On a CPU:
  operators          an operator of torch computes
  transfer           the rank is blocked in communication that every participating rank has entered
  waiting for ranks  the rank is blocked because another rank has not arrived yet, which is idle time
  Python             none of these: the loop, hooks, the engine between operators
All blocking in a message between pipeline stages counts as waiting. Communication inside native implementations has no
events, so for them both kinds of blocking are one: no operator runs while a collective is in progress. On a GPU the
parts are its kernels, communication while no kernel runs, and idle time, when neither runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from frog.core.errors import RunError
from frog.core.runs import RankEvents, RecordedRun, read_run
from frog.core.runs.event_schema import CollectiveEvent, MemoryEvent, SpanEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.read import step_collectives
from frog.core.runs.record import FORMAT
from frog.core.runs.vocabulary import MESSAGES, STEP_PHASES
from frog.core.schema import Typed, read_typed
from frog.train.profile.trace import (
    OperatorCall,
    Trace,
    TraceFile,
    common,
    length,
    read_trace_file,
    understand,
    without,
)

OPERATORS, TRANSFER, WAITING, PYTHON = "operators", "transfer", "waiting for ranks", "Python"
EXPOSED, KERNELS, ALONE, IDLE = "exposed communication", "kernels", "communication alone", "idle"


class TracedRank(Typed, frozen=True, kw_only=True):
    """profile/rank_N.json: the data that a reader of a rank's trace needs."""

    KIND: ClassVar[str] = "trace metadata"
    FORMAT: ClassVar[int | None] = FORMAT

    rank: int
    plain_steps: list[int]
    """Steps taken without the profiler."""
    recorded_steps: list[int]
    axes: dict[str, list[int]]
    """The ranks of this rank's group on each axis, by the names that collectives use."""


@dataclass(frozen=True)
class Communication:
    """One rank's communication, in microseconds per step."""

    num_collectives: float
    under_way_us: float
    """Time in progress. Concurrent collectives count several times, in strategies from scratch."""
    blocked_us: float
    overlap: float | None
    """The fraction of the time in progress that did not block the rank; without messages between stages."""


@dataclass(frozen=True)
class RankProfile:
    """One rank's time, in microseconds per step."""

    rank: int
    step_us: float
    """Mean of the recorded steps."""
    plain_us: float
    """Median of the same number of earlier steps, without the profiler."""
    slow_us: float
    """Median of the recorded steps, from the events."""
    parts: dict[str, float]
    phases: dict[str, float]
    """Time by phase; `other` is the time outside all phases."""
    communication: Communication | None
    """None in a world of one rank."""
    calls: list[OperatorCall]
    num_steps: int
    memory: MemoryEvent | None
    peak_bytes: int
    """Peak memory of the whole process (on a GPU, of its tensors), before the profiler began."""
    profiler_bytes: int
    """How much higher the peak was at the end."""


@dataclass(frozen=True)
class Profile:
    """All ranks."""

    folder: RunFolder
    ranks: list[RankProfile]
    files: dict[int, TraceFile]
    traces: dict[int, Trace]
    run: RecordedRun


def read_profile(folder: RunFolder) -> Profile:
    """Measure a profiled run. Raises RunError if it left no traces."""
    paths = [path for path in folder.profile.glob("rank_*.json") if path.suffixes == [".json"] and path.exists()]
    abouts = {about.rank: about for about in (read_typed(path, TracedRank) for path in sorted(paths))}
    if not abouts:
        raise RunError(f"{folder.profile}: contains no traces", "frog profile RUN.toml")
    run = read_run(folder)
    if not all(_fits(about, abouts, run) for about in abouts.values()):
        raise RunError(
            f"{folder.profile}/rank_*.json: do not match this run's ranks, steps and events", "frog profile RUN.toml"
        )
    is_ours = run.setting("strategy", "implementation") == "frog"
    collectives = {
        rank: {step: _collectives(run.ranks[rank], step) for step in about.recorded_steps}
        for rank, about in abouts.items()
    }
    files = {rank: read_trace_file(folder.trace(rank)) for rank in sorted(abouts)}
    traces = {rank: understand(file.events) for rank, file in files.items()}
    ranks = []
    for rank, trace in traces.items():
        blocked = _blocked(rank, abouts[rank].axes, collectives) if is_ours else None
        reported = [call for step in collectives[rank].values() for call in step] if is_ours else []
        ranks.append(_measure(abouts[rank], trace, run.ranks[rank], reported, blocked))
    return Profile(folder, ranks, files, traces, run)


def _fits(about: TracedRank, abouts: Mapping[int, TracedRank], run: RecordedRun) -> bool:
    """True if a rank took all of its steps, and the ranks of its groups recorded the same steps."""
    events, steps = run.ranks.get(about.rank), {*about.plain_steps, *about.recorded_steps}
    beside = {rank for ranks in about.axes.values() for rank in ranks}
    return (
        events is not None
        and bool(about.plain_steps and about.recorded_steps)
        and steps <= events.by_step(StepEvent).keys() & _data_starts(events).keys()
        and all(about.rank in ranks for ranks in about.axes.values())
        and all(rank in abouts and abouts[rank].recorded_steps == about.recorded_steps for rank in beside)
    )


def _data_starts(events: RankEvents) -> dict[int, int]:
    return {span.step: span.start_ns for span in events.of(SpanEvent) if span.phase == "data"}


def _collectives(events: RankEvents, step: int) -> list[CollectiveEvent]:
    """Return the collectives of one step, in the order in which they began."""
    return sorted(step_collectives(events, step), key=lambda one: one.start_ns)


def _blocked(
    rank: int, axes: Mapping[str, Sequence[int]], collectives: Mapping[int, Mapping[int, Sequence[CollectiveEvent]]]
) -> tuple[float, float]:
    """Return the microseconds, over all recorded steps, that a rank was blocked, and those spent waiting for a rank.

    The n-th collective of an axis in a step is the same one on all of its ranks; messages are excluded.
    Assumes: that the ranks are on one machine, whose clock they share.
    """
    blocked_ns = late_ns = 0
    for step, own in collectives[rank].items():
        blocked_ns += sum(call.wait_ns for call in own)
        late_ns += sum(call.wait_ns for call in own if call.op in MESSAGES)
        for axis, ranks in axes.items():
            rows = [
                [call for call in collectives[other][step] if call.axis == axis and call.op not in MESSAGES]
                for other in ranks
            ]
            if len({len(row) for row in rows}) == 1:
                last_ns = [max(call.start_ns for call in calls) for calls in zip(*rows, strict=True)]
                late_ns += sum(map(_late_ns, rows[list(ranks).index(rank)], last_ns))
    return blocked_ns / 1e3, late_ns / 1e3


def _late_ns(own: CollectiveEvent, last_ns: int) -> int:
    """Return how long a rank was blocked before the last rank arrived. It was blocked at the end of the collective."""
    stood_from_ns = max(own.start_ns, own.end_ns - own.wait_ns)
    return min(own.wait_ns, max(0, last_ns - stood_from_ns))


def _measure(
    about: TracedRank,
    trace: Trace,
    events: RankEvents,
    reported: Sequence[CollectiveEvent],
    blocked: tuple[float, float] | None,
) -> RankProfile:
    num_steps = len(trace.steps)
    steps_us = sum(end - start for start, end in trace.steps.values())
    parts = _parts(trace, steps_us, blocked)
    phases: dict[str, float] = {
        phase: sum(end - start for name, (start, end) in trace.phases if name == phase) for phase in STEP_PHASES
    }
    phases["other"] = steps_us - sum(phases.values())
    memory = {step: event.memory_bytes for step, event in events.by_step(StepEvent).items()}
    before, after = memory[about.plain_steps[-1]], memory[about.recorded_steps[-1]]
    return RankProfile(
        rank=about.rank,
        step_us=steps_us / num_steps,
        plain_us=_median_us(events, about.plain_steps),
        slow_us=_median_us(events, about.recorded_steps),
        parts={name: us / num_steps for name, us in parts.items()},
        phases={name: us / num_steps for name, us in phases.items()},
        communication=_communication(trace, parts, reported, num_steps) if len(about.axes) else None,
        calls=trace.calls,
        num_steps=num_steps,
        memory=next(iter(events.of(MemoryEvent)), None),
        peak_bytes=before,
        profiler_bytes=after - before,
    )


def _parts(trace: Trace, steps_us: float, blocked: tuple[float, float] | None) -> dict[str, float]:
    steps = list(trace.steps.values())
    work = common(trace.work, steps)
    if trace.kernels:
        alone_us = without(common(trace.transfers, steps), work)
        return {KERNELS: length(work), ALONE: alone_us, IDLE: steps_us - length(work) - alone_us}
    if blocked is None:
        blocked_us = without(common(trace.transfers, steps), work)
        return {OPERATORS: length(work), EXPOSED: blocked_us, PYTHON: steps_us - length(work) - blocked_us}
    blocked_us, late_us = blocked
    rest_us = steps_us - length(work) - blocked_us
    return {OPERATORS: length(work), TRANSFER: blocked_us - late_us, WAITING: late_us, PYTHON: rest_us}


def _communication(
    trace: Trace, parts: Mapping[str, float], reported: Sequence[CollectiveEvent], num_steps: int
) -> Communication:
    blocked_us = sum(parts.get(name, 0.0) for name in (TRANSFER, WAITING, EXPOSED, ALONE))
    if reported and not trace.kernels:
        whole = [call for call in reported if call.op not in MESSAGES]
        num, under_way_us = len(reported), sum(call.end_ns - call.start_ns for call in reported) / 1e3
        hidden_us = sum(max(0, call.end_ns - call.start_ns - call.wait_ns) for call in whole) / 1e3
        counted_us = sum(call.end_ns - call.start_ns for call in whole) / 1e3
    else:
        transfers = [span for span in trace.transfers if common([span], trace.steps.values())]
        num, under_way_us = len(transfers), length(transfers)
        hidden_us, counted_us = under_way_us - blocked_us, under_way_us
    overlap = hidden_us / counted_us if counted_us else None
    return Communication(num / num_steps, under_way_us / num_steps, blocked_us / num_steps, overlap)


def _median_us(events: RankEvents, steps: Iterable[int]) -> float:
    """Return the median time of some steps, from the start of the data phase to the step's last event."""
    starts = _data_starts(events)
    ends = {step: event.end_ns for step, event in events.by_step(StepEvent).items()}
    return statistics.median([float(ends[step] - starts[step]) / 1e3 for step in steps])

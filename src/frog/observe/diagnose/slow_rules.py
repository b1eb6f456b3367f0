"""Rules about a slow run: a straggler, one rank that keeps all others waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from frog.core.runs.attempts import Worker
from frog.core.runs.event_schema import CollectiveEvent, SpanEvent
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.collectives import CollectiveCalls
from frog.observe.diagnose.diagnosis import Diagnosis

_LEAST_S = 0.05
"""A smaller delay is normal variation."""

_SIMULATED_SHARE, _USUAL_DEVIATIONS = 0.03, 6.0
"""Least delay of a straggler in a simulation, where equal ranks take equal times but for its jitter: a share of the
phase, and a multiple of the median deviation."""

_FEWEST_STEPS = 3
"""Number of consecutive late steps, up to the end, that prove a straggler; fewer must stand out more clearly."""

_STANDS_OUT = 3.0
"""Required ratio to the largest delay of any other rank, phase and step."""

_LATE_S = 0.5
"""A rank that arrives this much later than all others was late."""

Key = tuple[int, str]
"""A step and a phase."""


@dataclass(frozen=True)
class Delay:
    """A rank that takes longer for a phase than the others, from a step to the end."""

    rank: int
    phase: str
    steps: list[int]
    extra_s: float
    """The median delay."""
    usual_s: float
    """The time that the other ranks take for the phase."""


def straggler(case: Case) -> Diagnosis | None:
    """Find a rank that is late for every collective from some step on, or once, in the very last step."""
    delay = find_delay(case)
    if delay is None:
        return None
    rank, steps = delay.rank, delay.steps
    waits = {other: _wait_s(worker, set(steps)) for other, worker in case.attempt.workers.items()}
    lines = [
        f"{'':12}  rank {rank}: {delay.phase} took {delay.usual_s + delay.extra_s:.3f} s without waiting, in each of "
        f"steps {steps[0]} to {steps[-1]}; on the others {delay.usual_s:.3f} s  [events/rank_{rank}.jsonl]"
    ]
    lines += [
        f"{'':12}  rank {other}: waited {wait_s:.2f} s in the collectives of those steps  [events/rank_{other}.jsonl]"
        for other, wait_s in sorted(waits.items())
    ]
    later = [step for step in (worker.last_step for worker in case.attempt.workers.values()) if step >= steps[0]]
    finding = (
        f"rank {rank} is a straggler: from step {steps[0]} on, its {delay.phase} takes {delay.extra_s:.2f} s longer "
        f"than on the other ranks, which wait for it ({len(steps)} of {max(later, default=0) - steps[0] + 1} steps)"
    )
    once = (
        f"rank {rank} was late once: in step {steps[0]} its {delay.phase} took {delay.extra_s:.2f} s longer than "
        "on the other ranks, which waited for it; this may have been chance"
    )
    return Diagnosis(
        "slow",
        finding if len(steps) > 1 else once,
        rank=rank,
        node_rank=case.attempt.node_of(rank),
        step=steps[0],
        phase=delay.phase,
        certain=len(steps) >= _FEWEST_STEPS,
        evidence=tuple(lines),
        advice="possible causes: a busy or throttled machine (`top`, `nvidia-smi -q -d CLOCK,PERFORMANCE`), a slow "
        "disk (phase data), "
        "more tokens than the others; every step takes as long as the slowest rank",
    )


def late_each_time(case: Case, calls: CollectiveCalls) -> Diagnosis | None:
    """Find a step in which all ranks timed out because one came later; no rank was lost (`on_loss=shrink`).

    Without `shrink` no step is repeated: if a network is cut, each rank waits from the arrival of its own last bytes.
    """
    if case.run.setting("comm", "on_loss") != "shrink":
        return None
    waits = {rank: case.comm_errors[rank].facts.waited_s or 0.0 for rank in case.timed_out}
    if len(waits) < 2 or set(waits) != set(case.ranks) or len({case.comm_errors[r].facts.seq for r in waits}) > 1:
        return None
    rank, *others = sorted(waits, key=lambda r: waits[r])
    late_s = waits[others[0]] - waits[rank]
    if late_s < _LATE_S:
        return None
    return Diagnosis(
        "slow",
        f"rank {rank} exceeded the others' timeout {case.where(rank)}: it arrived {late_s:.1f} s after them, the last "
        "time that the step was attempted",
        **case.about(rank),
        evidence=tuple(line for r in sorted(waits) for line in (case.report_error(r), case.report_position(r)) if line),
        advice="if such a delay is expected, raise train.timeout_s; otherwise find the cause: a busy machine "
        f"(`top`), a slow disk (phase data)\nthen `{case.run.folder.resume_command}`",
    )


def find_delay(case: Case) -> Delay | None:
    """Return the largest delay of a rank, if there is one. Ranks of different pipeline stages have different work."""
    is_simulated = case.run.is_simulated
    stages: dict[int, dict[int, dict[Key, float]]] = {}
    for rank, worker in case.attempt.workers.items():
        if worker.start is not None:
            stage = worker.start.place.get("pp", 0)
            stages.setdefault(stage, {})[rank] = _own_times(worker)
    delays = [
        delay
        for own in stages.values()
        for phase in sorted({phase for times in own.values() for _, phase in times})
        for rank in own
        if (delay := _delay(own, rank, phase, is_simulated)) is not None
    ]
    return max(delays, key=lambda delay: delay.extra_s, default=None)


def _delay(own: Mapping[int, Mapping[Key, float]], rank: int, phase: str, is_simulated: bool) -> Delay | None:
    """Return the step from which, to the end, this rank takes longer for a phase than the others usually do."""
    steps = sorted(step for step, name in own[rank] if name == phase)
    others = [time for r in own if r != rank for (_, name), time in own[r].items() if name == phase]
    if not others or not steps:
        return None
    usual_s = median(others)
    extra = {step: own[rank][step, phase] - usual_s for step in steps}
    least_s = max(_LEAST_S, 2 * usual_s)
    if is_simulated:
        deviation_s = median(abs(time - usual_s) for time in others)
        least_s = max(_SIMULATED_SHARE * usual_s, _USUAL_DEVIATIONS * deviation_s)
    late = _run_of_late(extra, least_s)
    if not late:
        return None
    extra_s = median(extra[step] for step in late)
    late = _run_of_late(extra, max(least_s, 0.6 * extra_s))  # ignore a single hiccup before it
    if not late or (len(late) < _FEWEST_STEPS and not _stands_out(own, rank, phase, late, extra_s)):
        return None
    return Delay(rank, phase, late, extra_s, usual_s)


def _run_of_late(extra: Mapping[int, float], least_s: float) -> list[int]:
    """Return the steps at the end, all of which are late."""
    late: list[int] = []
    for step in sorted(extra, reverse=True):
        if extra[step] <= least_s:
            break
        late.insert(0, step)
    return late


def _stands_out(own: Mapping[int, Mapping[Key, float]], rank: int, phase: str, late: list[int], extra_s: float) -> bool:
    """True if a delay that was seen only once or twice is far above all others: no chance."""
    usual = {name: median(time for times in own.values() for (_, n), time in times.items() if n == name)
             for name in {name for times in own.values() for _, name in times}}  # fmt: skip
    rest = (
        time - usual[name]
        for r, times in own.items()
        for (step, name), time in times.items()
        if not (r == rank and name == phase and step in late)
    )
    return extra_s > _STANDS_OUT * max(_LEAST_S, max(rest, default=0.0))


def _own_times(worker: Worker) -> dict[Key, float]:
    """Return how long each phase of each step took, in seconds, without the time spent waiting in collectives."""
    times: dict[Key, float] = {}
    for span, own_s in _passes(worker):
        key = (span.step, span.phase)
        times[key] = times.get(key, 0.0) + own_s
    return times


def pass_times(case: Case) -> dict[tuple[int, str, int], list[float]]:
    """Return the seconds of equal passes, without waiting, by pipeline stage, phase, and number in its step."""
    times: dict[tuple[int, str, int], list[float]] = {}
    for worker in case.attempt.workers.values():
        stage = worker.start.place.get("pp", 0) if worker.start is not None else 0
        number: dict[Key, int] = {}
        for span, own_s in _passes(worker):
            if span.phase in ("forward", "backward"):
                number[span.step, span.phase] = number.get((span.step, span.phase), -1) + 1
                times.setdefault((stage, span.phase, number[span.step, span.phase]), []).append(own_s)
    return times


def _passes(worker: Worker) -> Iterator[tuple[SpanEvent, float]]:
    """Yield each phase and its seconds without the time spent waiting in collectives.

    For evaluations and checkpoints, only the time to the first collective: rank 0 has more to do after it.
    """
    calls: dict[int, list[CollectiveEvent]] = {}
    for call in worker.of(CollectiveEvent):
        calls.setdefault(call.step, []).append(call)
    for span in worker.of(SpanEvent):
        start, end = span.start_ns, span.end_ns
        inside = [call for call in calls.get(span.step, []) if start <= call.start_ns <= end]
        if span.phase in ("evaluate", "checkpoint"):
            took = min((call.start_ns for call in inside), default=start) - start
        else:
            took = end - start - sum(call.wait_ns for call in inside)
        yield span, max(0, took) / 1e9


def _wait_s(worker: Worker, steps: set[int]) -> float:
    waits_ns = [call.wait_ns for call in worker.of(CollectiveEvent) if call.step in steps]
    return sum(waits_ns) / 1e9

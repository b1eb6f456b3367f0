"""The report's section on the strategy: layout, traffic, memory and waiting, compared with the formulas."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from frog.core.config import RunConfig
from frog.core.config.load import known_config
from frog.core.runs.event_schema import CollectiveEvent, MemoryEvent
from frog.core.runs.history import Collectives, History, RankHistory, Spans
from frog.core.runs.record import RunFile
from frog.core.runs.vocabulary import ASIDE, BETWEEN_TWO, PHASES
from frog.plan.layout import RankShare
from frog.plan.measure import compare_step
from frog.plan.memory import PARTS, rank_memory
from frog.plan.strategies import describe, expected_bubble

_NUM_STEPS = 50
"""Number of final steps for the mean of the overlap and the median of the bubble."""

_ASIDE = [PHASES.index(phase) for phase in ASIDE]
_PASSES = [PHASES.index("forward"), PHASES.index("backward")]


_BUBBLES = {
    "gpipe": "(p-1)/(m+p-1)",
    "1f1b": "(p-1)/(m+p-1)",
    "interleaved": "(p-1)/(vm+p-1) with v stages a rank",
    "zero_bubble": "(p-1)/(3m+p-1)",
}
"""Bubbles of p ranks and m micro-batches, if gradients of inputs and of weights each take as long as a forward pass."""

AnySpans = TypeVar("AnySpans", bound=Spans)


@dataclass(frozen=True)
class Recent:
    """One rank's last steps in the run's last world."""

    rank: int
    own: RankHistory
    place: dict[str, int]
    steps: list[int]
    """Steps in order; without the first of this world, which warms up, if there are others."""
    spans: Spans
    """Spans of training phases only."""
    collectives: Collectives


@dataclass(frozen=True)
class Seen:
    """A run's last world: its configuration, and the ranks to draw."""

    history: History
    config: RunConfig
    world_size: int
    segment: int
    ranks: list[Recent]
    step: int
    """The last step that all of them took and in which they synchronized."""
    has_formula: bool
    """True if the strategy has formulas and the configuration is valid in this world."""
    trains_all: bool
    """False for a fine-tuning run, whose memory no formula covers."""


def strategy_section(run: RunFile, history: History) -> dict[str, Any] | None:
    """Return the section's data; None for a run without a step, or with another version's configuration."""
    seen = _look(run, history)
    if seen is None:
        return None
    strategy = seen.config.strategy
    is_counted = seen.world_size > 1 and (seen.has_formula or not strategy.entry.has_formulas)
    traffic = [_traffic(seen, recent) for recent in seen.ranks] if is_counted else []
    return {
        "name": strategy.entry.name,
        "implementation": strategy.implementation,
        "sentences": describe(strategy, seen.world_size) if seen.world_size > 1 else [],
        "mesh": _mesh(seen),
        "step": seen.step,
        "num_steps": len(seen.ranks[0].steps),
        "traffic": traffic,
        "detail": max(traffic, key=lambda rank_traffic: rank_traffic["sent_bytes"]) if traffic else None,
        "ranks_differ": len({round(sent["sent_bytes"]) for sent in traffic}) > 1,
        "memory": _memory(seen),
        "overlap": _overlap(seen),
        "bubble": _bubble(seen),
    }


def _look(run: RunFile, history: History) -> Seen | None:
    segment, config = history.last_segment, known_config(run.config)
    if segment is None or config is None:
        return None
    world_size = history.segments[segment].world_size
    has_formula = config.strategy.entry.has_formulas and not config.world_problems(world_size)
    ranks = [
        _recent(history.ranks[rank], segment, RankShare(config, world_size, rank).place if has_formula else {})
        for rank in history.ranks_to_draw()
        if rank < world_size and segment in history.ranks[rank].starts
    ]
    ranks = [recent for recent in ranks if recent.steps]
    if not ranks:
        return None
    common = [step for step in ranks[0].steps if all(step in recent.steps for recent in ranks)]
    step = max(filter(config.meets, common), default=min(recent.steps[-1] for recent in ranks))
    return Seen(history, config, world_size, segment, ranks, step, has_formula, run.finetune is None)


def _recent(own: RankHistory, segment: int, place: dict[str, int]) -> Recent:
    steps = own.steps[own.segment == segment]
    steps = (steps[1:] if len(steps) > 1 else steps)[-_NUM_STEPS:]
    first = int(steps[0]) if len(steps) else 0

    def cut(spans: AnySpans, keep: Any = True) -> AnySpans:
        inside = (spans.segment == segment) & (spans.step >= first) & keep
        return type(spans)(*(getattr(spans, item.name)[inside] for item in fields(spans)))

    spans = cut(own.spans, ~np.isin(own.spans.phase, _ASIDE))
    return Recent(own.rank, own, place, steps.tolist(), spans, cut(own.collectives))


def _mesh(seen: Seen) -> dict[str, Any] | None:
    """Return the axes of several ranks, and each rank's coordinates; None with one rank, or unknown coordinates."""
    starts = [recent.own.starts[seen.segment] for recent in seen.ranks]
    axes = {name: size for name, size in starts[0].mesh.items() if size > 1}
    if not axes:
        return None
    rows = [
        {
            "rank": start.rank,
            "host": start.host,
            "places": [start.place.get(name) for name in axes],
        }
        for start in starts
    ]
    return {"axes": axes, "rows": rows}


def _collectives_of(recent: Recent, step: int) -> list[CollectiveEvent]:
    """Return a rank's collectives of a training step, without those of an evaluation or a checkpoint after it."""
    spans, calls, own = recent.spans, recent.collectives, recent.own
    inside = spans.step == step
    if not inside.any():
        return []
    after, before = calls.start_ns >= spans.start_ns[inside].min(), calls.start_ns <= spans.end_ns[inside].max()
    return [
        CollectiveEvent(
            step=step,
            seq=0,
            op=own.ops[calls.phase[i]],
            axis=own.axes[calls.axis[i]],
            payload_bytes=int(calls.micro[i]),
            start_ns=int(calls.start_ns[i]),
            end_ns=int(calls.end_ns[i]),
            wait_ns=int(calls.wait_ns[i]),
        )
        for i in np.flatnonzero((calls.step == step) & after & before)
    ]


def _traffic(seen: Seen, recent: Recent) -> dict[str, Any]:
    """Return one rank's traffic in one step, by axis and operation, and the total. Receives count on the sender."""
    reported = _collectives_of(recent, seen.step)
    rows = [
        row for row in compare_step(seen.config, seen.world_size, recent.rank, reported, seen.step) if row.op != "recv"
    ]
    sent, expected = sum(row.sent_bytes for row in rows), sum(row.expected_bytes for row in rows)
    return {
        "rank": recent.rank,
        "rows": [row for row in rows if row.expected or row.sent_bytes > expected / 100],
        "num_messages": sum(row.num_messages for row in rows),
        "sent_bytes": sent,
        "expected_bytes": expected,
        "ratio": sent / expected if expected else None,
    }


def _memory(seen: Seen) -> dict[str, Any] | None:
    """Return the last measured memory of each rank, and the formula's value if there is one."""
    rows = []
    for recent in seen.ranks:
        events = [event for step, event in recent.own.memory.items() if step <= seen.step]
        if events:
            rows.append({"rank": recent.rank, "parts": [_part(seen, recent, part, events[-1]) for part in PARTS]})
    return {"parts": PARTS, "rows": rows, "activations_have_formula": _activations_have_formula(seen)} if rows else None


def _part(seen: Seen, recent: Recent, part: str, event: MemoryEvent) -> dict[str, Any]:
    known = seen.has_formula and seen.trains_all and (part != "activations" or _activations_have_formula(seen))
    expected = getattr(rank_memory(seen.config, seen.world_size, recent.rank), part) if known else None
    measured = getattr(event, part)
    return {
        "measured": measured,
        "expected": expected,
        "ratio": measured / expected if expected and measured is not None else None,
    }


def _activations_have_formula(seen: Seen) -> bool:
    """True if the activation formula applies: the model's own float32 path on a CPU. Others keep different tensors."""
    train = seen.config.train
    on_cpu = seen.history.segments[seen.segment].device.startswith("cpu")
    from_scratch = seen.config.strategy.implementation == "frog"
    return train.precision == "fp32" and not train.compile and on_cpu and from_scratch


def _overlap(seen: Seen) -> list[dict[str, Any]]:
    """Return the fraction of the time of collectives in which the ranks continued to compute.

    Messages between two ranks are excluded: they are posted long before they move, and freed long after.
    """
    rows = []
    for recent in seen.ranks:
        reported = [
            collective
            for step in recent.steps
            for collective in _collectives_of(recent, step)
            if collective.op not in BETWEEN_TWO
        ]
        under_way_ns = sum(collective.end_ns - collective.start_ns for collective in reported)
        # A thread takes a moment to wake up after the end; that time does not belong to the collective.
        wait_ns = sum(min(collective.wait_ns, collective.end_ns - collective.start_ns) for collective in reported)
        if under_way_ns:
            each_ms = 1e6 * len(recent.steps)
            row = {"rank": recent.rank, "fraction": 1 - wait_ns / under_way_ns}
            rows.append({**row, "under_way_ms": under_way_ns / each_ms, "wait_ms": wait_ns / each_ms})
    return rows


def _bubble(seen: Seen) -> dict[str, Any] | None:
    """Return for each rank of a pipeline its idle fraction of the time from its first pass to its last."""
    expected = expected_bubble(seen.config) if seen.has_formula else None
    rows = []
    for recent in seen.ranks if expected is not None else ():
        fractions = [fraction for step in recent.steps if (fraction := _idle(seen, recent, step)) is not None]
        if fractions:
            rows.append({"rank": recent.rank, "stage": recent.place["pp"], "fraction": float(np.median(fractions))})
    if not rows:
        return None
    mean = float(np.mean([row["fraction"] for row in rows]))
    strategy = seen.config.strategy
    return {
        "rows": rows,
        "mean": mean,
        "expected": expected,
        "strategy": strategy,
        "num_micro": seen.config.train.grad_accum,
        "formula": _BUBBLES[strategy.schedule],
    }


def _idle(seen: Seen, recent: Recent, step: int) -> float | None:
    """Return 1 - busy / (first start to last end among the ranks of its pipeline), of forward and backward passes."""
    starts, ends, busy_ns = [], [], 0
    for other in seen.ranks:
        if any(other.place[name] != recent.place[name] for name in ("dp", "cp", "tp")):
            continue
        inside = (other.spans.step == step) & np.isin(other.spans.phase, _PASSES)
        if not inside.any():
            return None
        offset_ns = seen.history.clock_offset_ns(other.rank, seen.segment)
        start_ns, end_ns = other.spans.start_ns[inside], other.spans.end_ns[inside]
        starts.append(int(start_ns.min()) + offset_ns)
        ends.append(int(end_ns.max()) + offset_ns)
        if other is recent:
            busy_ns = int((end_ns - start_ns).sum())
    return 1 - busy_ns / (max(ends) - min(starts)) if max(ends) > min(starts) else None

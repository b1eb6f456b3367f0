"""Use of the time: each rank's fraction of every phase, and a few steps drawn span by span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from frog.core.runs.history import Floats, History, Ints, RankHistory, Spans
from frog.core.runs.vocabulary import PHASES

_MAX_SPANS = 1500
_ASIDE = [PHASES.index("evaluate"), PHASES.index("checkpoint")]


@dataclass
class RankFractions:
    """One rank's time by phase, in the steps that count."""

    rank: int
    wall_ns: int
    phase_ns: dict[str, int]
    """Time by phase; `other` is the time outside all spans."""
    collective_ns: int
    """Time blocked in collectives."""
    collective_bytes: int
    num_steps: int

    def fraction(self, name: str) -> float:
        return self.phase_ns[name] / self.wall_ns if self.wall_ns else 0.0

    @property
    def collective_fraction(self) -> float:
        return self.collective_ns / self.wall_ns if self.wall_ns else 0.0


def phase_fractions(history: History) -> list[RankFractions]:
    """Return the fractions of every rank that has spans."""
    return [_fractions(rank) for rank in history.ranks.values() if len(rank.spans.step)]


def _fractions(rank: RankHistory) -> RankFractions:
    spans, collectives = rank.spans, rank.collectives
    durations = spans.end_ns - spans.start_ns
    phase_ns: dict[str, int] = {phase: int(durations[spans.phase == index].sum()) for index, phase in enumerate(PHASES)}
    wall_ns = sum(
        int(spans.end_ns[spans.segment == segment].max() - spans.start_ns[spans.segment == segment].min())
        for segment in np.unique(spans.segment)
    )
    covered_ns = sum(phase_ns.values())
    wall_ns = max(wall_ns, covered_ns)
    return RankFractions(
        rank=rank.rank,
        wall_ns=wall_ns,
        phase_ns={**phase_ns, "other": wall_ns - covered_ns},
        collective_ns=int(collectives.wait_ns.sum()),
        collective_bytes=int(collectives.micro.sum()),
        num_steps=len(rank.steps),
    )


@dataclass
class Window:
    """A few steps, with a lane for every rank; positions are percent of the window's width."""

    title: str
    first_step: int
    last_step: int
    duration_ms: float
    lanes: list[dict[str, Any]]
    ticks: list[dict[str, Any]]
    phases: list[str]
    """Phases that occur in it, in FROG order."""


def windows(history: History) -> list[Window]:
    """Return windows of the last segment: typical, first and slowest steps, the last with evaluation or checkpoint."""
    main = history.main
    if main is None or not len(main.spans.step):
        return []
    segment = int(main.spans.segment.max())
    steps, durations = _step_durations(main.spans, segment)
    if not len(steps):
        return []
    aside = np.unique(main.spans.step[np.isin(main.spans.phase, _ASIDE) & (main.spans.segment == segment)])
    wanted: list[tuple[str, int, int]] = [("Typical steps", *_typical(steps, durations, aside))]
    if len(steps) > 2:
        wanted.append(("First steps", int(steps[0]), int(steps[1])))
    if len(steps) > 4:
        slowest = int(steps[1:][np.argmax(durations[1:])])
        wanted.append(("Slowest step", slowest, slowest))
    if len(aside):
        step = int(aside[-1])
        wanted.append(("Evaluation, checkpoint", step, min(step + 1, int(steps[-1]))))
    drawn = [_window(history, segment, title, first, last) for title, first, last in wanted]
    return [window for window in drawn if window is not None]


def _step_durations(spans: Spans, segment: int) -> tuple[Ints, Floats]:
    """Return each step's time from the start of its first training phase to the end of its last."""
    training = (spans.segment == segment) & ~np.isin(spans.phase, _ASIDE)
    steps, place = np.unique(spans.step[training], return_inverse=True)
    starts = np.full(len(steps), np.iinfo(np.int64).max)
    ends = np.zeros(len(steps), np.int64)
    np.minimum.at(starts, place, spans.start_ns[training])
    np.maximum.at(ends, place, spans.end_ns[training])
    return steps, (ends - starts).astype(np.float64)


def _typical(steps: Ints, durations: Floats, aside: Ints) -> tuple[int, int]:
    """Return two adjacent steps of median total time, without evaluation or checkpoint if possible."""
    if len(steps) < 3:
        return int(steps[0]), int(steps[-1])
    firsts = np.arange(len(steps) - 1)
    plain = firsts[~np.isin(steps[:-1], aside) & ~np.isin(steps[1:], aside) & (firsts > 0)]
    firsts = plain if len(plain) else firsts
    together = durations[firsts] + durations[firsts + 1]
    first = int(firsts[np.argsort(together, kind="stable")[(len(firsts) - 1) // 2]])
    return int(steps[first]), int(steps[first + 1])


def _window(history: History, segment: int, title: str, first: int, last: int) -> Window | None:
    rows: list[tuple[int, Spans, Spans]] = []
    for rank in history.ranks_to_draw():
        own = history.ranks[rank]
        offset_ns = history.clock_offset_ns(rank, segment)
        spans, collectives = (_cut(part, segment, first, last, offset_ns) for part in (own.spans, own.collectives))
        if len(spans.step):
            rows.append((rank, spans, collectives))
    if not rows:
        return None
    if sum(len(spans.step) for _, spans, _ in rows) > _MAX_SPANS:
        if last > first:
            return _window(history, segment, title, first, first)
        rows = rows[: max(1, _MAX_SPANS // max(len(spans.step) for _, spans, _ in rows))]
    start_ns = min(int(spans.start_ns.min()) for _, spans, _ in rows)
    end_ns = max(int(spans.end_ns.max()) for _, spans, _ in rows)
    width_ns = max(1, end_ns - start_ns)
    present = np.unique(np.concatenate([spans.phase for _, spans, _ in rows]))
    return Window(
        title=title,
        first_step=first,
        last_step=last,
        duration_ms=width_ns / 1e6,
        lanes=[
            {
                "rank": rank,
                "spans": _boxes(spans, start_ns, width_ns, PHASES),
                "collectives": _boxes(collectives, start_ns, width_ns, history.ranks[rank].ops),
            }
            for rank, spans, collectives in rows
        ],
        ticks=_ticks(width_ns),
        phases=[PHASES[index] for index in present],
    )


def _cut(spans: Spans, segment: int, first: int, last: int, offset_ns: int) -> Spans:
    inside = (spans.segment == segment) & (spans.step >= first) & (spans.step <= last)
    cut = Spans(*(getattr(spans, item.name)[inside] for item in fields(Spans)))
    cut.start_ns = cut.start_ns + offset_ns
    cut.end_ns = cut.end_ns + offset_ns
    return cut


def _boxes(spans: Spans, start_ns: int, width_ns: int, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "name": names[int(spans.phase[i])],
            "step": int(spans.step[i]),
            "extra": int(spans.micro[i]),
            "left": round(100 * (int(spans.start_ns[i]) - start_ns) / width_ns, 3),
            "width": round(100 * (int(spans.end_ns[i]) - int(spans.start_ns[i])) / width_ns, 3),
            "duration_ms": (int(spans.end_ns[i]) - int(spans.start_ns[i])) / 1e6,
        }
        for i in range(len(spans.step))
    ]


def _ticks(width_ns: int) -> list[dict[str, Any]]:
    """Return four to eight round positions on the time axis, in milliseconds."""
    width_ms = width_ns / 1e6
    power = 10.0 ** np.floor(np.log10(width_ms / 4))
    gap_ms = next(power * factor for factor in (5, 2, 1) if width_ms / (power * factor) >= 4)
    count = int(width_ms / gap_ms)
    return [{"left": round(100 * i * gap_ms / width_ms, 3), "label": f"{i * gap_ms:g}"} for i in range(count + 1)]

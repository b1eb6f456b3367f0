"""The report's charts as plain data: a list of steps, and one list of values per line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from frog.core.runs.history import Floats, History, Ints, RankHistory, Segment

MAX_POINTS = 2000
"""Most steps to draw in one chart (held-out scores are additional)."""
_MAX_SKIPPED = 200
_NAMED = 12

Chart = dict[str, Any]


def pick_steps(values: Floats, limit: int = MAX_POINTS) -> Ints:
    """Return indices of the values to draw: all, or the lowest and highest of each interval, to keep every spike."""
    if len(values) <= limit:
        return np.arange(len(values))
    picked = {0, len(values) - 1}
    for stretch in np.array_split(np.arange(len(values)), limit // 2 - 1):
        known = stretch[np.isfinite(values[stretch])]
        # An interval with only NaN appears as a gap.
        ends = (known[np.argmin(values[known])], known[np.argmax(values[known])]) if len(known) else (stretch[0],)
        picked.update(int(index) for index in ends)
    return np.array(sorted(picked), np.int64)


def charts(history: History) -> list[Chart]:
    """Build every chart of the report that has at least one value, in their order on the page."""
    main = history.main
    if main is None or not len(main.steps):
        return []
    every_chart = [
        _loss(history, main),
        _of_main(main, "learning_rate", "Learning rate", "", "Size of a step: warm-up, then cosine", "exact"),
        _of_main(main, "grad_norm", "Gradient norm", "", "Norm of the reduced gradient, before clipping", "exact"),
        _of_main(main, "tokens_per_s", "Throughput", "tokens/s", "All ranks together", "count"),
        _memory(history),
        *([_loss_scale(main)] if "loss_scale" in main.scalars else []),
        *([_world(history, main)] if any(segment.change for segment in history.segments) else []),
    ]
    return [chart for chart in every_chart if any(v is not None for line in chart["lines"] for v in line["values"])]


def _loss(history: History, main: RankHistory) -> Chart:
    picked = main.steps[pick_steps(main.scalars["loss_mean"])]
    evals = main.evals
    steps = np.array(sorted({*picked.tolist(), *evals}), np.int64)
    lines = [
        _line(f"rank {rank}", "rank", _at(steps, history.ranks[rank].steps, history.ranks[rank].scalars["loss"]), rank)
        for rank in history.ranks_to_draw()
        if len(history.ranks) > 1
    ]
    lines.append(_line("mean", "mean", _at(steps, main.steps, main.scalars["loss_mean"])))
    if evals:
        losses = np.array([float("nan") if event.loss is None else event.loss for event in evals.values()])
        lines.append(_line("held-out", "heldout", _at(steps, np.array(list(evals), np.int64), losses)))
    if history.run.file is None or history.run.file.program is not None:
        return _chart("loss", "Loss", "", "As the program recorded it", "exact", steps, lines, len(main.steps))
    note = "Cross-entropy on each rank's own sequences" if len(history.ranks) > 1 else "Cross-entropy"
    return _chart("loss", "Loss", "nats/token", note, "exact", steps, lines, len(main.steps))


def _of_main(rank: RankHistory, name: str, title: str, unit: str, note: str, style: str) -> Chart:
    picked = pick_steps(rank.scalars[name])
    line = _line(title.lower(), "mean", rank.scalars[name][picked])
    return _chart(name, title, unit, note, style, rank.steps[picked], [line], len(rank.steps))


def _memory(history: History) -> Chart:
    every_step = np.array(sorted({int(s) for rank in history.ranks.values() for s in rank.steps}), np.int64)
    known = [_at(every_step, rank.steps, rank.scalars["memory_bytes"]) for rank in history.ranks.values()]
    peaks = np.nan_to_num(np.array(known), nan=-np.inf).max(axis=0)
    steps = every_step[pick_steps(np.where(np.isfinite(peaks), peaks, np.nan))]
    lines = [
        _line(
            f"rank {rank}",
            "rank",
            _at(steps, history.ranks[rank].steps, history.ranks[rank].scalars["memory_bytes"]) / 2**20,
            rank,
        )
        for rank in history.ranks_to_draw()
    ]
    return _chart("memory_bytes", "Memory", "MiB", "Peak of each rank so far", "count", steps, lines, len(every_step))


def _loss_scale(main: RankHistory) -> Chart:
    """Chart fp16's loss scale, and the steps skipped because the gradient overflowed."""
    scale, skipped = main.scalars["loss_scale"], main.scalars["skipped"] == 1
    picked = pick_steps(scale)
    # The last skipped steps each get a mark, even if not every step is drawn.
    picked = np.unique(np.concatenate([picked, np.flatnonzero(skipped)[-_MAX_SKIPPED:]]))
    lines = [_line("loss scale", "mean", scale[picked])]
    if skipped.any():
        lines.append(_line("left out", "skipped", np.where(skipped, scale, np.nan)[picked]))
    words = _skipped_steps(main.steps[skipped], len(main.steps))
    note = f"fp16: the backward pass starts from the loss times this scale. {words}"
    return _chart("loss_scale", "Loss scale", "", note, "power", main.steps[picked], lines, len(main.steps))


def _world(history: History, main: RankHistory) -> Chart:
    """Chart the number of ranks in each step, and where ranks were lost or joined. A value holds until the next."""
    counting = {segment.from_step: segment for segment in history.segments if segment.counts}
    last_step = int(main.steps[-1])
    steps = np.array(sorted({*counting, last_step}), np.int64)
    of_step = [counting.get(step, history.segments[-1]) for step in steps.tolist()]
    changes = [counting[step].change if step in counting else None for step in steps.tolist()]
    lines = [_line("ranks", "world", [segment.world_size for segment in of_step])]
    for role in ("lost", "joined"):
        at = [s.world_size if c and getattr(c, role) else math.nan for s, c in zip(of_step, changes, strict=True)]
        who = ", ".join(str(rank) for change in changes if change for rank in getattr(change, role))
        lines += [{**_line(role, role, at), "text": who}] if who else []
    note = "Number of ranks in each step; marks show where ranks were lost or joined"
    return _chart("world", "World size", "ranks", note, "whole", steps, lines, 0)


def _skipped_steps(skipped: Ints, num_steps: int) -> str:
    """Describe the skipped steps: the first few by number."""
    if not len(skipped):
        return "No gradient overflowed"
    named = ", ".join(map(str, skipped[:_NAMED].tolist())) + (", …" if len(skipped) > _NAMED else "")
    halved = "each halved the scale"
    return f"{len(skipped)} of {num_steps:,} steps overflowed and were skipped; {halved}: {named}"


def _chart(
    name: str, title: str, unit: str, note: str, style: str, steps: Ints, lines: list[Chart], num_steps: int
) -> Chart:
    if num_steps > MAX_POINTS:
        note += (
            f". {num_steps:,} steps; the chart shows the lowest and highest of every {num_steps * 2 / MAX_POINTS:.0f}"
        )
    return {
        "name": name,
        "title": title,
        "unit": unit,
        "note": note,
        "style": style,
        "steps": steps.tolist(),
        "lines": lines,
    }


def _line(label: str, role: str, values: Sequence[float] | Floats, rank: int | None = None) -> Chart:
    return {"label": label, "role": role, "rank": rank, "values": _rounded(values)}


def _at(steps: Ints, own_steps: Ints, values: Floats) -> Floats:
    """Return the values at `steps`, NaN where there is none. `own_steps` are in order."""
    result = np.full(len(steps), np.nan)
    if len(own_steps):
        places = np.minimum(np.searchsorted(own_steps, steps), len(own_steps) - 1)
        present = own_steps[places] == steps
        result[present] = values[places[present]]
    return result


def _rounded(values: Sequence[float] | Floats) -> list[float | None]:
    """Round to six significant digits, as valid JSON: NaN and infinity become null."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]


def marks(history: History) -> list[dict[str, Any]]:
    """Return vertical lines for every chart, where the run resumed or its world changed."""
    return [{"step": segment.from_step, "label": _mark(segment)} for segment in history.segments[1:]]


def _mark(segment: Segment) -> str:
    if segment.change is None:
        return f"resumed, world {segment.world_size}"
    changes = ((list(segment.change.lost), "lost"), (segment.change.joined, "joined"))
    return ", ".join(f"{', '.join(map(str, who))} {what}" for who, what in changes if who)

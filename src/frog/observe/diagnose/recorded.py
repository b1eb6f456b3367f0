"""Findings from the numbers that a program recorded with `frog.record`: NaN, samples read twice, ranks that differ."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frog.core.runs.history import History, RankHistory
from frog.core.units import span
from frog.observe.diagnose.diagnosis import Diagnosis

_LEAST_SAMPLES = 8
"""Fewer samples prove nothing about their order."""

_SHARED = 0.5
"""Two ranks that have at least this fraction of their samples in common do not read different parts."""

_SAME = 1e-4
"""Largest relative difference of two numbers that count as equal; float32 sums of a gradient keep 1e-6."""
_LEAST_STEPS = 3
"""Fewer equal steps prove nothing about what follows."""


def recorded_findings(history: History) -> list[Diagnosis]:
    """Return what the recorded numbers show, most important first."""
    findings = (
        first_nan(history),
        shared_samples(history),
        same_order(history),
        rates_that_differ(history),
        norms_that_differ(history),
    )
    return [record for record in findings if record is not None]


def first_nan(history: History) -> Diagnosis | None:
    """Find the first step, and the ranks in it, whose loss or gradient norm stopped being finite."""
    first = [
        (step, rank, name)
        for name in ("loss", "grad_norm")
        if any(np.isfinite(own.scalars[name]).any() for own in history.ranks.values())  # the program records it
        for rank, own in history.ranks.items()
        if (step := _first_lost(own, name)) is not None
    ]
    if not first:
        return None
    step, _, name = min(first, key=lambda loss: (loss[0], loss[2] != "loss", loss[1]))
    ranks = sorted(rank for at, rank, what in first if (at, what) == (step, name))
    alone = len(ranks) == 1 and len(history.ranks) > 1
    what = "loss" if name == "loss" else "gradient norm"
    return Diagnosis(
        "nan",
        f"the {what} of {span(ranks)} is not finite from step {step} on"
        + ("; the other ranks' was finite in that step" if alone else ""),
        rank=ranks[0] if alone or len(history.ranks) == 1 else None,
        step=step,
        evidence=tuple(_line(rank, f"{what} in step {step}: not finite") for rank in ranks[:8]),
        advice="look at that rank's batch of that step; a loss that is NaN on all ranks at once came through the "
        "gradients of an earlier step (a learning rate or a loss scale that is too large)",
    )


def same_order(history: History) -> Diagnosis | None:
    """Find ranks that read their samples in the same shuffled order in the second epoch as in the first."""
    epochs = {rank: epoch for rank, own in history.ranks.items() if (epoch := _epoch(_samples(own))) is not None}
    again = [rank for rank, epoch in epochs.items() if epoch.repeats and not epoch.ascends]
    if not again or len(again) < len(epochs):
        return None
    lines = [
        _line(rank, f"{epochs[rank].size} samples, then the same ones in the same order") for rank in sorted(again)[:8]
    ]
    return Diagnosis(
        "samples",
        f"{span(again)} read the samples of each epoch in the same shuffled order: the order never changes",
        evidence=tuple(lines),
        advice="call `sampler.set_epoch(epoch)` at the start of each epoch",
    )


def shared_samples(history: History) -> Diagnosis | None:
    """Find two ranks that read the same samples in one epoch."""
    first = {rank: _first_epoch(_samples(own)) for rank, own in history.ranks.items()}
    pairs = [(a, b) for a, b in itertools.combinations(sorted(first), 2) if _overlap(first[a], first[b]) >= _SHARED]
    if not pairs:
        return None
    ranks = sorted({rank for pair in pairs for rank in pair})
    equal = all(first[a] == first[b] for a, b in pairs)
    a, b = pairs[0]
    shown = [_line(rank, f"first samples: {_shown(first[rank])}") for rank in ranks[:8]]
    common = f"{'':12}  ranks {a} and {b} have {100 * _overlap(first[a], first[b]):.0f} % of their samples in common"
    return Diagnosis(
        "samples",
        f"{span(ranks)} read the same samples{' in the same order' if equal else ''}: more ranks do not read more data",
        certain=equal,
        evidence=(*shown, common),
        advice="give each rank its own part: DistributedSampler(dataset, num_replicas=world_size, rank=rank), or "
        "`shard(world_size, rank)` of a stream. Tensor-parallel ranks of one group read the same samples on purpose",
    )


def rates_that_differ(history: History) -> Diagnosis | None:
    """Find the first step that ranks took with other learning rates."""
    steps, rates = _side_by_side(history, "learning_rate")
    different = [index for index, row in enumerate(rates) if not _equal(row)]
    if not different:
        return None
    first = different[0]
    return Diagnosis(
        "learning-rates",
        f"the learning rates of the ranks differ from step {steps[first]} on: {_range(rates[first])}",
        step=steps[first],
        certain=False,
        evidence=_values(history, "learning rate", steps[first], rates[first]),
        advice="let the scheduler of all ranks step alike: on a number that all have, such as the mean of their losses",
    )


def norms_that_differ(history: History) -> Diagnosis | None:
    """Find gradient norms that differ between ranks by one factor, or that were equal and are no longer.

    Norms that differ in another way may be those of a rank's own gradient or shard, and say nothing.
    """
    steps, norms = _side_by_side(history, "grad_norm")
    different = [index for index, row in enumerate(norms) if not _equal(row)]
    if not different:
        return None
    first = different[0]
    ratios = norms[first:] / norms[first:, :1] if np.all(norms[first:, 0]) else np.full((1, 1), np.nan)
    is_constant = len(ratios) >= _LEAST_STEPS and bool(np.all(np.ptp(ratios, axis=0) <= _SAME * ratios.mean(axis=0)))
    if first < _LEAST_STEPS and not is_constant:
        return None
    low, *_, high = sorted(history.ranks)
    how = _range(norms[first])
    if is_constant and len(history.ranks) == 2:
        how = f"in each step, that of rank {high} is {ratios[0, -1]:.4g} times that of rank {low}"
    since = f"from step {steps[first]} on" + (f", after {first} steps with equal ones" if first else "")
    return Diagnosis(
        "gradients",
        f"the gradient norms of the ranks differ {since}: {how}",
        step=steps[first],
        certain=False,
        evidence=_values(history, "gradient norm", steps[first], norms[first]),
        advice="replicas use equal gradients: look for a scale of the rank's own, a reduction that one rank leaves "
        "out, or weights that have come apart; `frog check` names the line. Ranks that hold other parts of a model may "
        "differ",
    )


def _side_by_side(history: History, name: str) -> tuple[list[int], np.ndarray]:
    """Return the steps in which all ranks recorded a finite number, and the numbers: a row for each step."""
    by_rank = [
        {
            int(step): float(value)
            for step, value in zip(own.steps, own.scalars[name], strict=True)
            if np.isfinite(value)
        }
        for _, own in sorted(history.ranks.items())
    ]
    steps = sorted(set.intersection(*map(set, by_rank))) if len(by_rank) > 1 else []
    return steps, np.array([[each[step] for each in by_rank] for step in steps]).reshape(len(steps), len(by_rank))


def _equal(row: np.ndarray) -> bool:
    return bool(np.ptp(row) <= _SAME * np.abs(row).max())


def _range(row: np.ndarray) -> str:
    return f"{row.min():.6g} to {row.max():.6g}"


def _values(history: History, what: str, step: int, row: np.ndarray) -> tuple[str, ...]:
    ranks = sorted(history.ranks)[:8]
    return tuple(_line(rank, f"{what} in step {step}: {value:.9g}") for rank, value in zip(ranks, row, strict=False))


@dataclass(frozen=True)
class _Epoch:
    size: int
    repeats: bool
    """True if the next epoch has the same samples in the same order."""
    ascends: bool
    """True if the samples are in ascending order, so not shuffled."""


def _epoch(samples: Sequence[int]) -> _Epoch | None:
    """Return the first epoch of a rank's samples; None if the second is not complete."""
    size = len(_first_epoch(samples))
    if size < _LEAST_SAMPLES or len(samples) < 2 * size:
        return None
    first = list(samples[:size])
    return _Epoch(size, list(samples[size : 2 * size]) == first, first == sorted(first))


def _first_epoch(samples: Sequence[int]) -> list[int]:
    """Return the samples before the first one that comes again."""
    seen: set[int] = set()
    for index, sample in enumerate(samples):
        if sample in seen:
            return list(samples[:index])
        seen.add(sample)
    return list(samples)


def _overlap(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the fraction of the shorter list that the other has too; 0 if there are too few samples."""
    least = min(len(a), len(b))
    return len({*a} & {*b}) / least if least >= _LEAST_SAMPLES else 0.0


def _samples(own: RankHistory) -> list[int]:
    return [sample for ids in own.sample_ids for sample in ids]


def _first_lost(own: RankHistory, name: str) -> int | None:
    """Return the first step from which on a number is never finite."""
    finite = np.isfinite(own.scalars[name])
    if not len(finite) or finite[-1]:
        return None
    return int(own.steps[int(np.flatnonzero(finite)[-1]) + 1 if finite.any() else 0])


def _line(rank: int, what: str) -> str:
    return f"{'':12}  rank {rank}: {what}  [events/rank_{rank}.jsonl]"


def _shown(samples: Sequence[int]) -> str:
    return ", ".join(map(str, samples[:6])) + (", ..." if len(samples) > 6 else "")

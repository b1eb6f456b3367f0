"""Sentences that say what the numbers of a report mean: below each chart, and below the time of the phases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from frog.core.runs.history import Floats, History
from frog.core.units import format_count
from frog.observe.view.numbers import format_number, format_percent
from frog.observe.view.timeline import RankFractions

_EVEN = 0.05
"""Ranks whose times differ by less than this fraction are called even."""
_SPIKE = 5.0
"""A gradient norm above this multiple of the median is called a spike."""
_GROWS = 0.01
_SLOW_STEP = 2.0


def chart_sentences(history: History) -> dict[str, str]:
    """Return a sentence for each chart by its name; a chart with too few steps has none."""
    main = history.main
    if main is None or len(main.steps) < 4:
        return {}
    scalars = main.scalars
    sentences = {
        "loss": _loss(scalars["loss_mean"], [event.loss for event in main.evals.values() if event.loss is not None]),
        "grad_norm": _norm(scalars["grad_norm"], main.steps.tolist()),
        "tokens_per_s": _throughput(scalars["tokens_per_s"], main.steps.tolist()),
        "memory_bytes": _memory({rank: own.scalars["memory_bytes"] for rank, own in history.ranks.items()}),
    }
    return {name: sentence for name, sentence in sentences.items() if sentence}


def _loss(losses: Floats, heldout: Sequence[float]) -> str:
    known = losses[np.isfinite(losses)]
    if len(known) < 4:
        return ""
    few = max(1, len(known) // 10)
    first, last = float(np.mean(known[:few])), float(np.mean(known[-few:]))
    said = f"The loss {'fell' if last < first else 'rose'} from {format_number(first)} to {format_number(last)}"
    said += " (means of the first and last tenth of the steps)."
    if not heldout:
        return said
    if heldout[-1] > 1.01 * min(heldout):
        risen = f"{said} The held-out loss has risen from {format_number(min(heldout))}"
        if last >= first:  # it diverges
            return f"{risen} to {format_number(heldout[-1])}."
        return f"{risen}: the usual sign of overfitting."
    if heldout[-1] > 1.1 * last:
        return f"{said} The held-out loss is higher by {format_number(heldout[-1] - last)}, perhaps by overfitting."
    return f"{said} The held-out loss is close: no sign of overfitting."


def _norm(norms: Floats, steps: Sequence[int]) -> str:
    known = norms[np.isfinite(norms)]
    if len(known) < 4 or not np.median(known):
        return ""
    largest, median = float(known.max()), float(np.median(known))
    finite = np.where(np.isfinite(norms), norms, -np.inf)
    first = len(norms) // 10 + 1
    late = first + int(np.argmax(finite[first:]))
    said = f"Median {format_number(median)}, largest {format_number(largest)} in step {steps[int(np.argmax(finite))]:,}"
    if finite[late] <= _SPIKE * median:
        return f"{said}: no spike after the first steps."
    if finite[late] < largest:
        spike = f"{format_number(float(finite[late]))} after the first steps, in step {steps[late]:,}"
        said = f"Median {format_number(median)}, largest {spike}"
    return f"{said}: a spike. Look at the batch of that step and at the learning rate."


def _throughput(values: Floats, steps: Sequence[int]) -> str:
    known = values[np.isfinite(values) & (values > 0)]
    if len(known) < 4:
        return ""
    median, lowest = float(np.median(known)), float(known.min())
    said = f"Median {format_count(median)} tokens/s"
    at = steps[int(np.nanargmin(np.where(values > 0, values, np.nan)))]
    if median > _SLOW_STEP * lowest:
        return f"{said}; step {at:,} took {format_number(median / lowest, 2)} times as long as the median step."
    return f"{said}; no step took more than {format_number(median / lowest, 2)} times as long as the median step."


def _memory(by_rank: dict[int, Floats]) -> str:
    peaks = {rank: float(np.nanmax(values)) for rank, values in by_rank.items() if np.isfinite(values).any()}
    if not peaks:
        return ""
    most = max(peaks, key=lambda rank: peaks[rank])
    late = by_rank[most][len(by_rank[most]) // 2 :]
    late = late[np.isfinite(late)]
    growth = float(late.max() / late[0]) - 1 if len(late) and late[0] > 0 else 0.0
    where = f" on rank {most}" if len(peaks) > 1 else ""
    said = f"Highest: {format_number(peaks[most] / 2**20, 3)} MiB{where}"
    if growth > _GROWS:
        return f"{said}; it grew by {format_percent(growth)} in the last half of the steps."
    return f"{said}; it stayed level in the last half of the steps."


def time_sentences(fractions: Sequence[RankFractions], num_nodes: int) -> list[str]:
    """Say which phase dominates, what reduce costs, who computes longest, and what the column `collectives` counts."""
    if not fractions:
        return []
    mean = {name: float(np.mean([rank.fraction(name) for rank in fractions])) for name in fractions[0].phase_ns}
    most = max(mean, key=lambda name: mean[name])
    said = [f"{most} dominates with {format_percent(mean[most])} of the time."]
    if len(fractions) == 1:
        return [*said, "With a second rank, a step would have reduce, too."]
    if mean["reduce"]:
        more = "" if num_nodes > 1 else "; a second node would put a network into it"
        said.append(f"reduce takes {format_percent(mean['reduce'])}{more}.")
    computed = {rank.rank: rank.phase_ns["forward"] + rank.phase_ns["backward"] for rank in fractions}
    slow, fast = max(computed, key=lambda rank: computed[rank]), min(computed, key=lambda rank: computed[rank])
    if computed[fast]:
        excess = computed[slow] / computed[fast] - 1
        if excess > _EVEN:
            longer = f"Rank {slow} computes {format_percent(excess)} longer than rank {fast}"
            said.append(f"{longer}: wherever all meet in a collective, the others wait for it.")
        else:
            said.append(f"All ranks compute equally long, within {format_percent(max(excess, 0.01))}.")
    waited = float(np.mean([rank.collective_fraction for rank in fractions]))
    if mean["reduce"] and waited:
        said.append(
            f"The column collectives has {format_percent(waited)} on average, and not reduce's "
            f"{format_percent(mean['reduce'])}: it counts waiting in every collective, also those of evaluate and "
            "checkpoint; reduce is a phase, with its own computing."
        )
    return said

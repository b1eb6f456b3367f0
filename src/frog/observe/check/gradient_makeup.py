"""Of which backward passes' gradients, and of how much of each, the gradient is made that an optimizer uses.

Gradients add up: what an optimizer uses is a sum of what the backward passes of the step have brought on all ranks that
reduce together, each with its own weight: 1/(ranks x micro-batches) for means. The weights follow from dot products of
sampled elements, which add up as gradients do (the observer's gradient_parts.py), by least squares: it does not
matter what buckets, hooks or buffers of the program a gradient goes through. How far rounding may have moved a weight
is known too; if the sum does not explain what is used up to rounding, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from frog.observe.check.comparison import Comparison, Moment
from frog.observe.check.rank_records import MEAN, Backward, Node, Step

LOSSES = ("NllLoss", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy", "L1Loss", "KlDiv", "SoftMarginLoss")
"""How the names of torch's loss functions begin in a graph."""
_SCALES = ("DivBackward", "MulBackward")
_UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_ROUNDINGS = 4
"""Roundings of an element besides one for each addition: of a division, of clipping, of the dot product."""
_DEVIATIONS = 10.0
_MOST_PASSES = 16
_MORE_ROWS = 3
"""Equations beyond the weights: each that a wrong sum meets up to rounding is a chance of 1 in 10,000."""
_RESOLVED = 0.05
"""Largest error of a weight, as a share of an equal one's, with which it is used."""


@dataclass(frozen=True)
class Makeup:
    """The weights of backward passes in a gradient, for the parameters that some ranks reduce together."""

    ranks: tuple[int, ...]
    passes: list[float]
    """The weight of each backward pass of the step, the same for each of the ranks."""
    before: float
    """The weight of the gradient that the step before has used."""
    error: float
    """As much of each weight may be rounding."""

    @property
    def is_even(self) -> bool:
        """True if all passes have the same weight."""
        return max(self.passes) - min(self.passes) <= 2 * self.error

    @property
    def weight(self) -> float:
        return sum(self.passes) / len(self.passes)


def is_plain_mean(backward: Backward) -> bool:
    """True if the loss ends in a mean, and nothing scales it after."""
    for node in backward.graph:
        if node.name.startswith(_SCALES) and node.factor != 1:
            return False
        if node.name.startswith("MeanBackward"):
            return True
        if node.name.startswith(LOSSES):
            return node.reduction == MEAN
    return False


def makeup_of(case: Comparison, moment: Moment) -> Iterator[Makeup]:
    """Yield what the gradients of a step are made of, for each group of ranks that reduces, or each rank alone."""
    held: dict[tuple[int, ...], set[int]] = {}
    for replica in case.replicas:
        if replica.optimizer == moment.optimizer and replica.known and set(replica.ranks) <= set(moment.of):
            held.setdefault(replica.ranks, set()).add(replica.index)
    for ranks in sorted(held):
        makeup = _solve(case, moment, ranks, held[ranks])
        if makeup is not None:
            yield makeup
    if not held:
        for rank, step in moment.of.items():
            makeup = _solve(case, moment, (rank,), set(step.parts))
            if makeup is not None:
                yield makeup


def _solve(case: Comparison, moment: Moment, ranks: tuple[int, ...], places: set[int]) -> Makeup | None:
    """Find the weights for the parameters at some places of the optimizer; None if no weights explain the gradient."""
    steps = [moment.of[rank] for rank in ranks]
    counts = {len(step.backwards) for step in steps}
    count = counts.pop()
    if counts or not 0 < count <= _MOST_PASSES:
        return None
    table = case.records[ranks[0]].tables[moment.optimizer].parameters
    terms: dict[int, list[list[float]]] = {}
    unit = 0.0
    for index in sorted(places & set(steps[0].parts) & set(range(len(table)))):
        columns = [brought_by(steps, moment.optimizer, number, index) for number in range(count)]
        known = [each for each in columns if each is not None]
        if len(known) == count and any(known):
            terms[index] = [each or [0.0] * len(steps[0].parts[index]) for each in known]
            unit = max(unit, _UNITS.get(table[index].dtype, 1.0))
    noise = unit * (count * len(ranks) + _ROUNDINGS)
    least = _RESOLVED / (count * len(ranks))
    weights = _weights(terms, steps[0].parts, noise, least)
    if weights is not None:
        return Makeup(ranks, weights[0], 0.0, weights[1])
    earlier = _step_before(case, moment, ranks[0])
    if earlier is not None:
        more = {index: [*each, earlier.parts[index]] for index, each in terms.items() if index in earlier.parts}
        weights = _weights(more, steps[0].parts, noise, least)
    return None if weights is None else Makeup(ranks, weights[0][:-1], weights[0][-1], weights[1])


def _weights(
    terms: dict[int, list[list[float]]], used: dict[int, list[float]], noise: float, least: float
) -> tuple[list[float], float] | None:
    """Return the weights of terms whose sum is what is used, and how far rounding may have moved them.

    noise: relative rounding error of what is used. least: the error with which weights are of use.
    """
    rows: list[list[float]] = []
    right: list[float] = []
    for index, each in terms.items():
        size = math.sqrt(math.fsum(value * value for part in (used[index], *each) for value in part))
        if size:
            rows += [[part[place] / size for part in each] for place in range(len(used[index]))]
            right += [value / size for value in used[index]]
    if not rows or len(rows) < len(rows[0]) + _MORE_ROWS:
        return None
    solved = least_squares(rows, right)
    if solved is None:
        return None
    weights, spread, rest = solved
    error = _DEVIATIONS * noise * spread
    return None if rest > _DEVIATIONS * noise or error > least else (weights, error)


def brought_by(steps: list[Step], optimizer: int, number: int, index: int) -> list[float] | None:
    """Return what a backward pass brought to a parameter on all ranks; empty if nothing, None if some rank lacks it."""
    parts = [step.backwards[number].brought.get(optimizer, {}).get(index) for step in steps]
    known = [each for each in parts if each is not None]
    if not known:
        return []
    return [math.fsum(each) for each in zip(*known, strict=True)] if len(known) == len(parts) else None


def _step_before(case: Comparison, moment: Moment, rank: int) -> Step | None:
    steps = (each for each in case.records[rank].sampled(moment.optimizer) if each.step == moment.step - 1)
    return next((each for each in steps if each.parts), None)


def least_squares(rows: list[list[float]], right: list[float]) -> tuple[list[float], float, float] | None:
    """Solve an overdetermined system; None if its columns depend on each other.

    Returns: the solution, by how much an error of 1 in each row may change its worst number, and the largest error of a
    row.
    """
    size = len(rows[0])
    matrix = [
        [math.fsum(row[i] * row[j] for row in rows) for j in range(size)]
        + [math.fsum(row[i] * value for row, value in zip(rows, right, strict=True))]
        + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    largest = max(matrix[i][i] for i in range(size))
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(matrix[k][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) <= 1e-12 * largest:
            return None
        matrix[i] = [value / matrix[i][i] for value in matrix[i]]
        for k in range(size):
            if k != i and matrix[k][i]:
                matrix[k] = [a - matrix[k][i] * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    solution = [line[size] for line in matrix]
    spread = math.sqrt(max(abs(matrix[i][size + 1 + i]) for i in range(size)))
    rest = max(
        abs(math.fsum(a * b for a, b in zip(row, solution, strict=True)) - value)
        for row, value in zip(rows, right, strict=True)
    )
    return solution, spread, rest


def shard_scale(step: Step, unit: float = 2.0**-23) -> tuple[float, float] | None:
    """Return by which one factor a rank scaled its shards of the gradients after they were reduced, and its error.

    None if the last backward pass left no shards, or no one factor explains what is used.
    """
    left = step.backwards[-1].left.get(step.optimizer, {}) if step.backwards else {}
    pairs = [(left[index], step.parts[index]) for index in left if index in step.parts]
    rows, right = [], []
    for before, used in pairs:
        size = math.sqrt(math.fsum(value * value for value in (*before, *used)))
        if size:
            rows += [[value / size] for value in before]
            right += [value / size for value in used]
    solved = least_squares(rows, right) if len(rows) >= 4 else None
    if solved is None:
        return None
    noise = unit * _ROUNDINGS
    (factor,), spread, rest = solved
    return None if rest > _DEVIATIONS * noise else (factor, _DEVIATIONS * noise * spread)


# ---- losses ----------------------------------------------------------------------------------------------------------


def scale_of_mean(backward: Backward) -> float | None:
    """Return the factor by which a loss multiplies a mean; None if it is not a mean times known numbers."""
    scale = 1.0
    for node in backward.graph:
        if node.name.startswith("MeanBackward"):
            return scale
        if node.name.startswith(LOSSES):
            return scale if node.reduction == MEAN else None
        factor = _factor(node)
        if factor is None:
            return None
        scale *= factor
    return None


def _factor(node: Node) -> float | None:
    """Return the number by which an operation multiplies its input; None if it does something else."""
    if node.name.startswith("MulBackward"):
        return node.factor
    if node.name.startswith("DivBackward"):
        return 1 / node.factor if node.factor else None
    keeps = ("ToCopyBackward", "ViewBackward", "AliasBackward", "CloneBackward", "UnsqueezeBackward", "SqueezeBackward")
    return 1.0 if node.name.startswith(keeps) else None


def clip_factor(step: Step) -> float | None:
    """Return by how much a step's one clipping scaled the gradients; 1 without one, None if it is not known."""
    clips = [call for call in step.calls if call.call == "clip"]
    if not clips:
        return 1.0
    if len(clips) > 1 or clips[0].norm is None or clips[0].limit is None:
        return None
    return min(1.0, clips[0].limit / (clips[0].norm + 1e-6))

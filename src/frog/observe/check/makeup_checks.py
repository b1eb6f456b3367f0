"""Breaches of the rules on sums of gradients, found in what a gradient is made of (`gradient_makeup.py`).

Each function belongs to a rule that looks at single calls first; here it sees what goes through the program's buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from weakref import WeakKeyDictionary

from frog.core.units import span
from frog.observe.check.comparison import Comparison, Moment
from frog.observe.check.gradient_makeup import Makeup, clip_factor, makeup_of, scale_of_mean, shard_scale
from frog.observe.check.rank_records import Place, RankRecord, Step
from frog.observe.check.rule import Broken

_CLOSE = 1e-3
"""Relative difference from a whole factor up to which a product of known numbers counts as it."""
_LEAST_SCALE = 1e-4
_REDUCTIONS = ("all_reduce", "reduce_scatter_tensor", "reduce")


def never_cleared(case: Comparison) -> Broken | None:
    """Find gradients that still have all of what the step before has used, as a buffer keeps it."""
    for moment, makeup in _makeups(case):
        if abs(makeup.before - 1) > max(_CLOSE, makeup.error) or not makeup.is_even or makeup.weight <= 0:
            continue
        line = _backward_line(moment, makeup)
        return Broken(
            f"the gradients of step {moment.step} on {span([*makeup.ranks])} are those of its own backward passes, "
            f"at {line}, plus all of step {moment.step - 1}'s, which were never cleared",
            "likely",
            "clear what holds the gradients in each step: `optimizer.zero_grad()` does not reach a buffer of your "
            "own, such as `main_grad` or a bucket",
            step=moment.step,
            ranks=makeup.ranks,
            line=line,
        )
    return None


def sum_not_divided(case: Comparison) -> Broken | None:
    """Find gradients of means that are added over ranks, whatever they go through, and divided by no number."""
    for moment, makeup, factor in _factors(case):
        size, count = len(makeup.ranks), len(makeup.passes)
        if size < 2 or not _ranks_have_own_losses(moment, makeup):
            continue
        times = next((each for each in (size, size * count) if _is_close(factor, each)), None)
        weight = makeup.weight / (clip_factor(moment.of[makeup.ranks[0]]) or 1.0)
        if times is None or not (_is_close(weight, 1) or _is_close(weight, 1 / count)) or _is_close(weight * size, 1):
            continue  # averaged over the ranks: the loss has the factor, or the micro-batches are added
        line = _reduced_at(moment, makeup)
        if line is None:
            continue
        return Broken(
            f"since step {moment.step}, the gradients are {times} times the mean over {span([*makeup.ranks])}"
            + (f" and {count} micro-batches" if count > 1 else "")
            + f", reduced at {line}: nothing divides the sum",
            "likely",
            f"divide by {size} before or after the reduction, or use dist.ReduceOp.AVG where the backend has it",
            step=moment.step,
            ranks=makeup.ranks,
            line=line,
        )
    return None


def micro_batches_added(case: Comparison) -> Broken | None:
    """Find gradients that are the sum over micro-batches of means, or that weigh the micro-batches differently."""
    return _uneven_micro_batches(case) or _undivided_micro_batches(case)


def _uneven_micro_batches(case: Comparison) -> Broken | None:
    uneven: dict[tuple[int, ...], list[tuple[Moment, Makeup]]] = {}
    several: dict[tuple[int, ...], int] = {}
    for moment, makeup in _makeups(case):
        if not _are_micro_batches(case, moment, makeup) or makeup.before:
            continue
        several[makeup.ranks] = several.get(makeup.ranks, 0) + 1
        if not makeup.is_even:
            uneven.setdefault(makeup.ranks, []).append((moment, makeup))
    for ranks, makeups in uneven.items():
        if len(makeups) < 2 or 2 * len(makeups) <= several[ranks]:
            continue  # micro-batches that are left at the end of an epoch may be given up
        moment, makeup = makeups[0]
        line = _backward_line(moment, makeup)
        shown = ", ".join(f"{each:.3g}" for each in makeup.passes)
        lost = sum(abs(each) <= makeup.error for each in makeup.passes)
        what = (
            f"{lost} of {len(makeup.passes)} micro-batches count nothing in the gradients: they are cleared between two"
            if lost
            else f"the {len(makeup.passes)} micro-batches have unequal weights in the gradients, {shown}: what is "
            "accumulated is scaled again"
        )
        return Broken(
            f"in step {moment.step} on {span([*ranks])}, with backward passes at {line}, {what}",
            "likely",
            "call `zero_grad` once for each step of the optimizer, not for each micro-batch"
            if lost
            else "scale the losses, or the gradients once, after the last micro-batch",
            step=moment.step,
            ranks=ranks,
            line=line,
        )
    return None


def _undivided_micro_batches(case: Comparison) -> Broken | None:
    for moment, makeup, factor in _factors(case):
        size, count = len(makeup.ranks), len(makeup.passes)
        if count < 2 or not _are_micro_batches(case, moment, makeup):
            continue
        clip = clip_factor(moment.of[makeup.ranks[0]]) or 1.0
        times = next((each for each in (count, size * count) if _is_close(factor, each)), None)
        if times is None or (size > 1 and times == size == count and not _is_close(makeup.weight / clip * size, 1)):
            continue
        line = _backward_line(moment, makeup)
        return Broken(
            f"step {moment.step} adds the gradients of {count} micro-batches at {line}: they are {times} times those "
            "of the mean over all of them, since no loss and no gradient is divided by their number",
            "likely",
            f"`(loss / {count}).backward()`, or divide the gradients before the step. With Adam the step is about the "
            "same, but clipping and weight decay are not",
            step=moment.step,
            ranks=makeup.ranks,
            line=line,
        )
    return None


def shards_scaled_unequally(case: Comparison) -> Broken | None:
    """Find ranks that scale their shards of one gradient by factors of their own."""
    for moment in case.all_sampled():
        scales = {rank: shard_scale(step) for rank, step in moment.of.items()}
        known = {rank: each for rank, each in scales.items() if each is not None}
        if len(known) < len(moment.of) or len(known) < 2:
            continue
        factors = [factor for factor, _ in known.values()]
        least = max(_LEAST_SCALE, *(2 * error for _, error in known.values()))
        if max(factors) - min(factors) <= least * max(map(abs, factors)):
            continue
        norms = [_norm_of(moment.of[rank]) for rank, (factor, _) in known.items() if factor < 1 - least]
        to_one_norm = len(norms) > 1 and None not in norms and _spread(norms) <= _CLOSE
        shown = ", ".join(f"{factor:.4g}" for factor in factors[:8])
        step = next(iter(moment.of.values()))
        line = next((call.line for call in step.calls if call.call == "gradient_written"), step.line)
        return Broken(
            f"since step {moment.step}, each rank scales its shard of the gradients by a factor of its own after the "
            f"backward pass, at {line}: {shown}"
            + ("; each shard then has the same norm, so that it was clipped by its own" if to_one_norm else ""),
            "certain" if to_one_norm else "likely",
            "the norm must be that of the whole gradient: add the squares over the ranks that hold shards of it "
            "(all_reduce), then take the root; torch.nn.utils.clip_grad_norm_ does this for DTensors",
            step=moment.step,
            ranks=tuple(known),
            line=line,
        )
    return None


def clipped_before_the_end(case: Comparison) -> Broken | None:
    """Find gradients that are larger than the limit to which they were clipped: something has added to them since."""
    for record in case.records.values():
        large = []
        for step in record.steps:
            clips = [call for call in step.calls if call.call == "clip" and step.optimizer in call.covers]
            norm = _norm_of(step)
            table = record.tables.get(step.optimizer)
            parts = table is None or any(each.placements or each.whole for each in table.parameters)
            if step.gradients is None or not clips or clips[-1].limit is None or norm is None or parts:
                continue
            if norm > clips[-1].limit * (1 + _CLOSE):
                large.append((step, clips[-1], norm))
        if len(large) < 2 or case.is_sharded:
            continue
        step, call, norm = large[0]
        return Broken(
            f"the gradients that step {step.step} on rank {record.rank} uses have the norm {norm:.4g}, although they "
            f"were clipped to {call.limit:g} at {call.line}: they were not there yet, or something was added since",
            "likely",
            "clip after the last backward pass of a step and right before `optimizer.step()`",
            step=step.step,
            ranks=(record.rank,),
            line=call.line,
        )
    return None


# ---- helpers ---------------------------------------------------------------------------------------------------------


_MAKEUPS: WeakKeyDictionary[Comparison, list[tuple[Moment, Makeup]]] = WeakKeyDictionary()


def _makeups(case: Comparison) -> list[tuple[Moment, Makeup]]:
    """Return what the gradients of each sampled step are made of; solved once for all rules."""
    if case not in _MAKEUPS:
        _MAKEUPS[case] = [(moment, each) for moment in case.all_sampled() for each in makeup_of(case, moment)]
    return _MAKEUPS[case]


def _factors(case: Comparison) -> Iterator[tuple[Moment, Makeup, float]]:
    """Yield by which factor gradients of even weight are larger than the mean over ranks and micro-batches."""
    for moment, makeup in _makeups(case):
        scales = [scale_of_mean(each) for rank in makeup.ranks for each in moment.of[rank].backwards]
        clip = clip_factor(moment.of[makeup.ranks[0]])
        if makeup.before or not makeup.is_even or not clip or not scales or None in scales:
            continue
        first = scales[0] or 0.0
        if first and all(each is not None and _is_close(each, first) for each in scales):
            yield moment, makeup, makeup.weight * first * len(makeup.passes) * len(makeup.ranks) / clip


def _is_close(number: float, target: float) -> bool:
    return abs(number - target) <= _CLOSE * abs(target)


def _ranks_have_own_losses(moment: Moment, makeup: Makeup) -> bool:
    """True if the ranks' losses differ: ranks that split a layer have parts of the gradient of one loss."""
    losses = {tuple(each.loss for each in moment.of[rank].backwards) for rank in makeup.ranks}
    return len(losses) > 1 and not any(None in each for each in losses)


def sample_rows(case: Comparison, record: RankRecord, step: Step) -> list[tuple[int, ...]]:
    """Return the samples of each training forward of a step.

    A stage of a pipeline gets activations and, with each micro-batch, the same positions: these are no samples.
    """
    rows = _rows_of(step)
    if case.has_messages:
        every = [set(_rows_of(each)) for each in record.sampled(step.optimizer)]
        same = set.intersection(*every) if len(every) > 1 else set()
        rows = [each for each in rows if each not in same]
    return rows


def _rows_of(step: Step) -> list[tuple[int, ...]]:
    return [tuple(each.rows) for each in step.forwards if each.grad and each.rows]


def _are_micro_batches(case: Comparison, moment: Moment, makeup: Makeup) -> bool:
    """True if a step has several backward passes of one line, of samples that are not known to be the same."""
    for rank in makeup.ranks:
        step = moment.of[rank]
        rows = sample_rows(case, case.records[rank], step)
        if len(step.backwards) < 2 or len({each.line for each in step.backwards}) > 1 or step.stale:
            return False
        if len(rows) > 1 and len(set(rows)) < len(rows):
            return False  # several losses of the same samples, which are meant to be added, or a second look at them
    return True


def _backward_line(moment: Moment, makeup: Makeup) -> Place | None:
    step = moment.of[makeup.ranks[0]]
    forwards = [each.line for each in step.forwards if each.grad and each.line is not None]
    line = step.backwards[0].line
    return forwards[-1] if line == step.line and forwards else line


def _reduced_at(moment: Moment, makeup: Makeup) -> Place | None:
    """Return the line of the largest reduction that the program itself calls in a step."""
    step = moment.of[makeup.ranks[0]]
    calls = [call for call in step.calls if call.call in _REDUCTIONS and call.elements > 1 and call.line is not None]
    return max(calls, key=lambda call: call.elements).line if calls else None


def _norm_of(step: Step) -> float | None:
    """Return the norm of all gradients that a rank's optimizer holds."""
    norms = [each.norm for each in step.gradients or [] if each is not None]
    known = [each for each in norms if each is not None]
    return math.sqrt(math.fsum(each * each for each in known)) if len(known) == len(norms) else None


def _spread(numbers: list[float | None]) -> float:
    known = [each for each in numbers if each is not None]
    return max(known) / min(known) - 1 if known and min(known) > 0 else math.inf

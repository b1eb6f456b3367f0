"""Rules on a run on many ranks next to one rank: what the first difference says, and of which line."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from frog.core.units import count, some_of
from frog.observe.check.against_one import (
    CLIPPED_NORM,
    LEAST_SHARE,
    WHOLE,
    Against,
    Compared,
    Kind,
    first_backward,
    rows_of,
)
from frog.observe.check.comparison import MOST_NAMES, NotObservable
from frog.observe.check.rank_records import MEAN, Place, Step, line_of_unequal_seeds
from frog.observe.check.rule import Broken, Rule, Sure

_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter_tensor")
_TRANSFERS = ("broadcast", "all_gather_into_tensor")


def _look(kind: Kind) -> Any:
    def look(case: Against) -> Broken | None:
        if case.first is not None and case.first.kind == kind:
            return _EXPLAIN[kind](case, case.first)
        if not case.counts[kind]:
            raise NotObservable(_why_not(case))
        return None

    return look


def _why_not(case: Against) -> str:
    if case.first is not None:
        return "it comes after the first difference"
    return case.ended or "no tensor has the same name on one rank and on many"


def _start(case: Against, first: Compared) -> Broken:
    names = [each.name for each in case.others if each.differs]
    return Broken(
        f"{_ranks(case)} begin with other weights than one rank ({some_of(names, MOST_NAMES)}), so that nothing after "
        "them can be compared",
        "possible",
        "begin both with the same weights: load them from one file, or draw the whole model with one seed on every "
        "rank before it is divided. A checkpoint that the first run left may have been loaded by the second",
        step=1,
        line=_made(case, first.name),
        evidence=_evidence(first),
    )


def _made(case: Against, name: str) -> Place | None:
    """Return the line that made a parameter on the ranks, or that gave each of them another seed before."""
    seeded = line_of_unequal_seeds(case.many.values(), name)
    if seeded is not None:
        return seeded
    tables = (table for record in case.many.values() for table in record.tables.values())
    return next((each.made for table in tables for each in table.parameters if name in each.names[:1]), None)


def _output(case: Against, first: Compared) -> Broken:
    alone = case.one.steps[case.step - 1]
    ranks = [record.steps[case.step - 1] for record in case.many.values()]
    if len(case.others) == 1 and _other_samples(alone, ranks):  # nothing before it agrees
        return _samples_differ(case, first)
    where = f"{first.name} ({first.module})" + (f", called at {first.line}," if first.line is not None else "")
    before = case.counts["output"] - 1
    says = f"in step {case.step}, the output of {where} is the first that differs from one rank's"
    if case.step == 1 and before:
        says += f"; {count(before, 'output')} before it {'agrees' if before == 1 else 'agree'}"
    line = first.line
    parts = _last_sum(case.others[:-1]) if first.copies_differ else None
    if parts is not None:
        says += (
            f". The outputs of {parts.name} before it, called at {parts.line}, are parts of a sum: nothing adds them"
        )
        line = parts.line
    sure: Sure = "possible"
    if "BatchNorm" in first.module and "Sync" not in first.module:
        says += ": each rank normalizes by the mean and variance of its own samples"
        advice = (
            "convert the model with `SyncBatchNorm.convert_sync_batchnorm` if the statistics should be those of all "
            "ranks"
        )
    elif any(forward.draws for step in (alone, *ranks) for forward in step.forwards):
        says += ". The forward draws random numbers, such as dropout, which differ between one rank and many"
        advice = "set dropout to 0 for this comparison"
    else:
        sure = "likely"
        advice = (
            "compare what this module does on one rank and on many: which part of its input, weights or heads each "
            "rank has, and which results are added or gathered"
        )
    line = line or _call_line(ranks, _TRANSFERS)  # what was sent after the step before
    return Broken(says, sure, advice, step=case.step, line=line, evidence=_evidence(first))


def _samples_differ(case: Against, first: Compared) -> Broken:
    alone = case.one.steps[case.step - 1]
    ranks = [record.steps[case.step - 1] for record in case.many.values()]
    ours = sum(len(rows or ()) for rows in rows_of(alone))
    theirs = len({row for step in ranks for rows in rows_of(step) for row in rows or ()})
    return Broken(
        f"in step {case.step}, {_ranks(case)} train on other samples than one rank: {theirs} different ones, one "
        f"rank on {ours}",
        "possible",
        "say how the batch of a rank depends on their number, as in `--batch-size {32/world}`, and draw the same "
        "order of samples with one seed; else this is how ranks divide the data, and nothing more can be compared",
        step=case.step,
        line=alone.forwards[0].line if alone.forwards else None,
        evidence=_evidence(first),
    )


def _call_line(ranks: list[Step], names: tuple[str, ...]) -> Place | None:
    """Return the last line of the user's that called one of some collectives: a library runs the rest of the step."""
    lines = [call.line for step in ranks for call in step.calls if call.call in names and call.line is not None]
    return lines[-1] if lines else None


def _last_sum(before: list[Compared]) -> Compared | None:
    """Return the innermost of the modules just before the first difference whose outputs are parts of a sum."""
    last = None
    for each in reversed(before):
        if not each.is_sum or each.name.startswith(WHOLE):
            break
        last = each
    return last


def _other_samples(alone: Step, ranks: list[Step]) -> bool:
    """True if the ranks' samples are known to be others than one rank's."""
    ours = Counter(row for rows in rows_of(alone) for row in rows or ())
    theirs = Counter(row for step in ranks for rows in rows_of(step) for row in rows or ())
    return (bool(ours and theirs) and not set(ours) & set(theirs)) or set(theirs) < set(ours) or set(ours) < set(theirs)


def _gradient(case: Against, first: Compared) -> Broken:
    alone = case.one.steps[case.step - 1]
    ranks = [record.steps[case.step - 1] for record in case.many.values()]
    names = [each.name for each in case.others if each.differs]
    line = (alone.backwards[-1].line if alone.backwards else alone.line) or _call_line(ranks, _REDUCTIONS)
    factor = first.factor if first.name == CLIPPED_NORM else _one_factor(case.others)
    if factor is not None:
        return _all_have_a_factor(case, first, factor, line)
    backward = first_backward(case)
    nodes = [node for step in ranks for each in step.backwards for node in each.graph]
    targets = [node.weight for node in nodes if node.weight and node.reduction == MEAN]
    says = f"in step {case.step}, the gradients of {some_of(names, MOST_NAMES)} differ from those of one rank"
    says += f", while those of {len(case.others) - len(names)} others agree" if len(names) < len(case.others) else ""
    advice = "compare how these gradients are reduced: over which ranks, as a sum or as a mean, and exactly once"
    if len(set(targets)) > 1:
        says += f": each rank's loss is a mean over its own targets, {some_of(sorted(set(targets)), MOST_NAMES)}"
        advice = "divide the sum of all ranks' losses by the number of all targets"
    elif backward is not None:
        name, sums = backward
        says += f"; in the backward pass, the gradient of the output of {name} ({sums.name}) is the first that differs"
        line = sums.line or line
    else:
        line = _reduced_at(case, names) or line
    sure: Sure = "likely"
    if any(forward.draws for step in (alone, *ranks) for forward in step.forwards):
        sure = "possible"
    return Broken(says, sure, advice, step=case.step, line=line, evidence=_evidence(first))


def _all_have_a_factor(case: Against, first: Compared, factor: float, line: Place | None) -> Broken:
    world = case.world_size
    known = {float(world): "the number of ranks", 1.0 / world: "one over the number of ranks"}
    meaning = next((text for value, text in known.items() if math.isclose(value, factor, rel_tol=1e-2)), "")
    says = f"in step {case.step}, all gradients are {factor:.4g} times those of one rank"
    return Broken(
        f"{says}: {meaning}" if meaning else says,
        "likely",
        "average the gradients over ranks and micro-batches exactly once: a sum over ranks that is read as a mean, "
        "or a mean that is divided again"
        if meaning
        else "look for a loss that is divided by another number, or for clipping by another norm than that of the "
        "whole gradient",
        step=case.step,
        line=line,
        evidence=_evidence(first),
    )


def _reduced_at(case: Against, names: list[str]) -> Place | None:
    """Return the line of the all_reduce into which the program gave a gradient as the backward pass left it."""
    for record in case.many.values():
        step = record.steps[case.step - 1]
        table = record.tables.get(step.optimizer)
        left = step.backwards[-1].bits.get(step.optimizer, []) if step.backwards else []
        parameters = table.parameters if table is not None else []
        bits = {bits for each, bits in zip(parameters, left, strict=False) if bits and set(each.names) & set(names)}
        line = next((call.line for call in step.calls if call.call == "all_reduce" and call.entered in bits), None)
        if line is not None:
            return line
    return None


def _one_factor(compared: list[Compared]) -> float | None:
    """Return the factor between all gradients on many ranks and on one; None if they differ by several."""
    whole = math.sqrt(math.fsum(each.norm**2 for each in compared))
    large = [each for each in compared if each.norm >= LEAST_SHARE * whole]
    factors = [each.factor for each in large if each.factor is not None and each.rest <= each.allowed]
    if len(factors) < len(large) or not factors or min(factors) <= 0:
        return None
    spread = max(factors) / min(factors) - 1
    return sorted(factors)[len(factors) // 2] if spread <= 2 * max(each.allowed for each in large) else None


def _weight(case: Against, first: Compared) -> Broken:
    alone = case.one.steps[case.step - 1]
    rates = {tuple(record.steps[case.step - 1].lr) for record in case.many.values()}
    names = [each.name for each in case.others if each.differs]
    says = f"step {case.step} leaves other weights than on one rank ({some_of(names, MOST_NAMES)})"
    if rates != {tuple(alone.lr)}:
        theirs = some_of(sorted({rate for each in rates for rate in each if rate is not None}), MOST_NAMES)
        ours = some_of([rate for rate in alone.lr if rate is not None], MOST_NAMES)
        return Broken(
            f"{says}: the learning rate is {theirs}, on one rank {ours}",
            "possible",
            "give both the same learning rate; a rate that grows with the number of ranks is a choice, not a mistake",
            step=case.step,
            line=alone.line,
            evidence=_evidence(first),
        )
    return Broken(
        f"{says} although its gradients agree",
        "likely",
        "compare the optimizers' states and arguments, and what else changes the weights",
        step=case.step,
        line=alone.line,
        evidence=_evidence(first),
    )


_EXPLAIN = {"start": _start, "output": _output, "gradient": _gradient, "weight": _weight}


def _ranks(case: Against) -> str:
    return count(case.world_size, "rank")


def _evidence(first: Compared) -> tuple[str, ...]:
    if math.isinf(first.difference):
        return (f"{first.name}: not finite on one side",)
    return (f"{first.name}: differs by {first.difference:.2g} of its norm; rounding explains {first.allowed:.2g}",)


RULES_AGAINST_ONE: tuple[Rule, ...] = (
    Rule("one-start", "many ranks begin with the weights of one rank", _look("start")),
    Rule("one-forward", "each module returns on many ranks what it returns on one", _look("output")),
    Rule("one-gradients", "the optimizer uses the gradients of one rank", _look("gradient")),
    Rule("one-step", "each step leaves the weights of one rank", _look("weight")),
)


def scope(case: Against) -> str:
    """Return what was compared and how close it was, as a sentence."""
    nouns: dict[Kind, tuple[str, str]] = {
        "start": ("weight at the start", "weights at the start"),
        "output": ("output of modules", "outputs of modules"),
        "gradient": ("gradient", "gradients"),
        "weight": ("weight after a step", "weights after a step"),
    }
    parts = [count(case.counts[kind], *words) for kind, words in nouns.items() if case.counts[kind]]
    says = f"Compared with one rank, in {count(case.step, 'step')}: {', '.join(parts) or 'nothing'}"
    if case.first is None and parts:
        says += f". The largest difference is {100 * case.closest:.0f} % of what rounding allows"
    if case.ended:
        says += f". No further: {case.ended}"
    if case.skipped:
        says += f". Not compared: {some_of(sorted(case.skipped), MOST_NAMES)}"
    return says

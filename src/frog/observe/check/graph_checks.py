"""Graphs of autograd that a program keeps from step to step, so that its memory grows."""

from __future__ import annotations

from itertools import pairwise

from frog.core.units import count
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import Kept, RankRecord, Step
from frog.observe.check.rule import Broken

_LEAST_STEPS = 3
"""Earlier steps whose graphs are there together: a program may look back at one or two."""
_SURE_STEPS = 5
"""As many, without one that has gone, are likely kept by mistake also if the holder is not known."""


def graphs_kept(case: Comparison) -> Broken | None:
    """Find graphs of several earlier steps that are there together."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        looks = [step for step in record.steps if step.gradients is not None]
        seen = seen or any(step.step > _LEAST_STEPS + 1 for step in looks)
        kept = [(step, step.kept) for step in looks if step.kept is not None]
        first = next(((step, each) for step, each in kept if each.steps >= _LEAST_STEPS), None)
        if first is not None:
            return _broken(record, first[0], [each for _, each in kept])
    if not seen:
        raise NotObservable(f"fewer than {_LEAST_STEPS + 2} steps of an optimizer were sampled")
    return None


def _broken(record: RankRecord, step: Step, every: list[Kept]) -> Broken:
    most = max(every, key=lambda each: each.steps)
    holder = next((each.holder for each in every if each.holder is not None), None)
    named = holder is not None and holder.line is not None
    line = holder.line if holder is not None and holder.line is not None else most.line
    retains = any(each.retains for each in step.backwards)
    what = "self." * holder.attribute + holder.name if holder is not None else ""
    where = f" at {line}" if line is not None else ""
    if holder is not None and named:
        who = f"`{what}`{where} holds them"
    elif holder is not None:
        who = f"`{what}` holds them, of the {most.what}{where}"
    else:
        who = f"something holds the {most.what}{where}"
    is_sure = (holder is not None or most.steps >= _SURE_STEPS) and not _is_window(every)
    return Broken(
        f"graphs of earlier steps stay in memory on rank {record.rank}, since step {most.first}: {who}; after step "
        f"{step.step}, those of {count(_graphs_at(step), 'earlier step')} were there"
        + (f", later those of {most.steps}" if most.steps > _graphs_at(step) else ""),
        "likely" if is_sure else "possible",
        "detach the hidden state before the next step (`h = h.detach()`), and call backward without "
        "`retain_graph=True`: each backward pass now also goes through the steps before"
        if retains
        else "add numbers, not tensors with a graph: `total += loss.item()` or `losses.append(loss.detach())`; the "
        "memory of each step's activations is freed only when the last tensor that was made from them is gone",
        step=step.step,
        ranks=(record.rank,),
        line=line,
        evidence=(
            f"rank {record.rank}   step {step.step}: graphs of {_graphs_at(step)} earlier steps, the first of step "
            f"{most.first}  [{record.path}]",
        ),
    )


def _graphs_at(step: Step) -> int:
    return step.kept.steps if step.kept is not None else 0


def _is_window(every: list[Kept]) -> bool:
    """True if the oldest graph goes when one more comes, as in a list of limited length: memory does not grow."""
    moves = [each for each, other in pairwise(every) if other.first > each.first and abs(other.steps - each.steps) <= 1]
    return len(moves) >= _LEAST_STEPS

"""The rule on parameters that an optimizer holds: each gets a gradient that is not always zero."""

from __future__ import annotations

from dataclasses import replace

from frog.core.units import some_of
from frog.observe.check.comparison import MOST_NAMES, Comparison, NotObservable
from frog.observe.check.rank_records import Backward, Parameter, RankRecord, Step
from frog.observe.check.rule import Broken

_LEAST_STEPS = 3
"""Steps without a gradient from which on a parameter counts as unused."""


def gradients_arrive(case: Comparison) -> Broken | None:
    """Find parameters that an optimizer holds and that never get a gradient."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        for optimizer, table in record.tables.items():
            steps = record.sampled(optimizer)
            if len(steps) < _LEAST_STEPS:
                continue
            seen = True
            without = _without_gradient(case, record, optimizer)
            if without and len(without) == len(table.parameters) and all(step.backwards for step in steps):
                return _no_gradient_arrives(record, optimizer)
            if without and len(without) < len(table.parameters):
                return _some_without(case, record, optimizer, without)
            broken = _zero_gradients(case, record, optimizer)
            if broken is not None:
                return broken
    if not seen:
        raise NotObservable(f"fewer than {_LEAST_STEPS} steps of each optimizer were sampled")
    return None


def _some_without(case: Comparison, record: RankRecord, optimizer: int, without: list[int]) -> Broken:
    first, steps = record.tables[optimizer].parameters[without[0]], record.sampled(optimizer)
    names = some_of([case.name(optimizer, index, record.rank) for index in without], MOST_NAMES)
    broken = Broken(
        f"{names} got no gradient in any of {len(steps)} steps",
        "possible",
        "is it used in the forward? A tensor that is detached, made again or under no_grad has none",
        step=1,
        ranks=(record.rank,),
        line=first.selected or first.made,
    )
    cut = next((call.line for _, call in record.calls("checkpoint_without_gradient")), None)
    if cut is None:
        return broken
    return replace(
        broken,
        finding=f"{broken.finding}: the checkpoint at {cut} has an input without a gradient, and is reentrant",
        sure="likely",
        advice="call the checkpoint with use_reentrant=False, or let its input need a gradient, as transformers' "
        "`enable_input_require_grads()` does",
        line=cut,
    )


def _zero_gradients(case: Comparison, record: RankRecord, optimizer: int) -> Broken | None:
    """Find parameters whose gradients are zero in all sampled steps, on all ranks that have them."""
    table, steps = record.tables[optimizer], record.sampled(optimizer)
    zero = [
        index
        for index in range(len(table.parameters))
        if all(
            other.rank == record.rank or _are_same(case, optimizer, index, record.rank, other.rank)
            for other in case.records.values()
        )
        and all(_is_zero(other.sampled(optimizer), index) for other in case.records.values())
    ]
    if not zero:
        return None
    empty = [index for index in zero if _stays_empty(table.parameters[index], steps, index)]
    shown = empty or zero
    names = some_of([case.name(optimizer, index, record.rank) for index in shown], MOST_NAMES)
    themselves = f", and so is {names} itself" if len(shown) == 1 else ", and so are they themselves"
    return Broken(
        f"the gradient of {names} is zero in all of {len(steps)} steps{themselves if empty else ''}",
        "likely" if empty else "possible",
        "begin one of two factors, as those of LoRA, with random numbers: if both are zero, neither gets a gradient"
        if empty
        else "does the loss depend on it? A factor of zero, a mask or a part that is never chosen hides it",
        step=1,
        ranks=(record.rank,),
        line=table.parameters[shown[0]].made or table.made,
    )


def _is_zero(steps: list[Step], index: int) -> bool:
    gradients = [step.gradient(index) for step in steps]
    return bool(gradients) and all(each is not None and each.norm == 0 for each in gradients)


def _stays_empty(parameter: Parameter, steps: list[Step], index: int) -> bool:
    """True for a matrix of zeros: a bias of an expert that no token reaches is zero too."""
    weights = [step.weights[index] for step in steps]
    return len(parameter.shape) > 1 and all(each is not None and each.norm == 0 for each in weights)


def _without_gradient(case: Comparison, record: RankRecord, optimizer: int) -> list[int]:
    """Return the parameters that get no gradient in any sampled step of a rank, nor on another rank.

    A rank's shard may be empty, and another rank may take another branch.
    """

    def is_without(steps: list[Step], index: int) -> bool:
        return all(step.gradient(index) is None for step in steps)

    sampled, parameters = record.sampled(optimizer), record.tables[optimizer].parameters
    own = [index for index, each in enumerate(parameters) if each.trained and is_without(sampled, index)]
    return [
        index
        for index in own
        if not any(
            _are_same(case, optimizer, index, record.rank, other.rank)
            and not is_without(other.steps_of(optimizer), index)
            for other in case.records.values()
        )
    ]


def _no_gradient_arrives(record: RankRecord, optimizer: int) -> Broken:
    table, steps = record.tables[optimizer], record.sampled(optimizer)
    is_used = any(each.names for each in table.parameters)
    brought = next((each for each in steps[0].backwards if each.brought.get(optimizer)), None)
    line = steps[0].line if is_used else table.made
    return Broken(
        f"no parameter of the optimizer made at {table.made} got a gradient in any of {len(steps)} steps"
        + ("" if is_used else ", and no module that was called has them")
        + (f", although the backward pass at {brought.line} brought some" if brought is not None else "")
        + _taken_away(steps[0].backwards, optimizer)
        + ": the steps change nothing",
        "likely",
        "reduce the gradients after the last micro-batch of each step, and leave them until the step"
        if is_used
        else "make the optimizer of the parameters that the model has after it is wrapped or sharded",
        step=1,
        ranks=(record.rank,),
        line=brought.line if brought is not None else line,
    )


def _taken_away(passes: list[Backward], optimizer: int) -> str:
    """Say which backward pass left gradients, if a later one of the step has taken them away."""
    left = [number for number, each in enumerate(passes, 1) if any(each.bits.get(optimizer, ()))]
    if not left or left[-1] == len(passes):
        return ""
    return f", pass {left[-1]} of {len(passes)} left them to the optimizer, and pass {left[-1] + 1} took them away"


def _are_same(case: Comparison, optimizer: int, index: int, rank: int, other: int) -> bool:
    mine, theirs = (case.parameter(optimizer, index, each) for each in (rank, other))
    return mine is not None and theirs is not None and mine.names == theirs.names

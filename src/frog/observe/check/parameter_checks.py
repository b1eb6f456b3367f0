"""Rules on each rank's parameters: all are trained, with this step's gradients, in a type that holds the update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frog.core.units import some_of
from frog.observe.check.comparison import MOST_NAMES, Comparison, NotObservable
from frog.observe.check.graph_checks import graphs_kept
from frog.observe.check.makeup_checks import never_cleared
from frog.observe.check.mode_checks import autocast_reaches, evaluation_mode, evaluations_draw_nothing
from frog.observe.check.rank_records import Call, Fingerprint, Outside, Parameter, RankRecord, Step
from frog.observe.check.rule import Broken, Rule
from frog.observe.check.tied_weights import tied_weights
from frog.observe.check.unused_parameters import gradients_arrive

_LOW = ("bfloat16", "float16")
_MOST_LOST = 0.5
"""Least part of a tensor that an update must leave as it was to count as lost in rounding."""
_LEAST_ELEMENTS = 16
_MOST_DRAWS = 2
_IDLE_STEPS = 2
"""Steps without a learning rate at the end, if they are a tenth of all, that count: a schedule may end at 0."""


def gradients_cleared(case: Comparison) -> Broken | None:
    """Find a step that used the sum of its own gradients and those of the step before."""
    case.require_steps()
    seen = False
    for record, step in _sampled(case):
        seen = seen or step.step > 1
        if step.stale and step.backwards:
            line = step.backwards[0].line
            return Broken(
                f"step {step.step} on rank {record.rank} adds to the gradients of step {step.step - 1}, which were "
                f"never cleared, at {line}",
                "certain",
                "call `optimizer.zero_grad()` once per step, before the first backward",
                step=step.step,
                ranks=(record.rank,),
                line=line,
            )
    if not seen:
        raise NotObservable("no optimizer took a second step")
    return never_cleared(case)


def initialized_once(case: Comparison) -> Broken | None:
    """Find parameters whose elements one line draws several times."""
    case.require_steps()
    for record in case.records.values():
        for table in record.tables.values():
            # twice is common: a part of a model is initialized alone, and again with the whole
            drawn = [each for each in table.parameters if each.drawn > _MOST_DRAWS]
            if drawn:
                first = drawn[0]
                return Broken(
                    f"{some_of(_names_of(drawn), MOST_NAMES)} {'were' if len(drawn) > 1 else 'was'} drawn at random "
                    f"{first.drawn} times by {first.drawn_at}",
                    "possible",
                    "initialize each parameter in one place: an initialization that is applied to every module and "
                    "looks below each of them meets a parameter once per level",
                    step=1,
                    ranks=(record.rank,),
                    line=first.drawn_at,
                )
    return None


def in_an_optimizer(case: Comparison) -> Broken | None:
    """Find parameters with a gradient that no optimizer holds."""
    case.require_steps()
    seen = False
    # ranks may share out the parameters, as ZeRO does by hand
    tables = [table for record in case.records.values() for table in record.tables.values()]
    elsewhere = {name for table in tables for each in table.parameters for name in each.names}
    for record in case.records.values():
        if record.end is None:
            continue
        held = {each.module for table in record.tables.values() for each in table.parameters}
        seen = True
        lost = [
            each
            for each in record.end.outside
            if (each.module in held or not _shards(record)) and each.name not in elsewhere
        ]
        strangers = [each for each in lost if each.stranger]
        if strangers:
            return _layers_outside_of_the_model(record, strangers)
        if lost and not case.is_sharded:
            return _never_trained(record, lost)
    if not seen:
        raise NotObservable("no rank came to its end")
    return None


def _layers_outside_of_the_model(record: RankRecord, strangers: list[Outside]) -> Broken:
    names = some_of([each.name for each in strangers], MOST_NAMES)
    return Broken(
        f"the model calls layers that are no part of it ({names}): no optimizer holds "
        "them, DDP does not average them, and no file has them",
        "likely",
        "put layers into an attribute, an nn.ModuleList or an nn.ModuleDict, not into a list or a dict",
        step=1,
        ranks=(record.rank,),
        line=strangers[0].made,
    )


def _never_trained(record: RankRecord, lost: list[Outside]) -> Broken:
    names = some_of([each.name for each in lost], MOST_NAMES)
    makers = [table.made for table in record.tables.values()]
    return Broken(
        f"no optimizer holds {names} of the model, which {'have' if len(lost) > 1 else 'has'} gradients: "
        f"{'they are' if len(lost) > 1 else 'it is'} never trained",
        "likely",
        "create the optimizer after the model is complete, with all of its parameters, and again if you "
        "replace parameters; set requires_grad=False for those that shall stay",
        step=1,
        ranks=(record.rank,),
        line=next((line for line in makers if line is not None), None) or lost[0].made,
    )


def _shards(record: RankRecord) -> bool:
    """True if the optimizer holds tensors that are in no module, such as shards cut by hand."""
    return any(each.module is None for table in record.tables.values() for each in table.parameters)


def steps_change_weights(case: Comparison) -> Broken | None:
    """Find parameters with a gradient that no step changes, and updates that are lost in rounding."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        for optimizer, table in record.tables.items():
            steps = [step for step in record.sampled(optimizer) if any(step.lr)]
            if len(steps) < 2:
                continue
            seen = True
            for index, parameter in enumerate(table.parameters):
                look = _update_lost_in_rounding if parameter.dtype in _LOW else _no_update
                broken = look(case, record, steps, index)
                if broken is not None:
                    return broken
    if not seen:
        raise NotObservable("fewer than two steps with a learning rate above 0 were sampled")
    return None


def _changed_parts(steps: list[Step], index: int, parameter: Parameter) -> list[float]:
    """Return which part of a parameter each step has changed, of the steps with a gradient; empty for too few."""
    parts = [step.changed[index] for step in steps if _is_moved(step, index)]
    known = [part for part in parts if part is not None]
    return known if len(known) > 1 and parameter.numel >= _LEAST_ELEMENTS else []


def _update_lost_in_rounding(case: Comparison, record: RankRecord, steps: list[Step], index: int) -> Broken | None:
    table = record.tables[steps[0].optimizer]
    parameter = table.parameters[index]
    changed = sorted(_changed_parts(steps, index, parameter))
    if not changed or changed[len(changed) // 2] > 1 - _MOST_LOST:
        return None
    lost = 100 * (1 - changed[len(changed) // 2])
    return Broken(
        f"the update of {case.name(table.optimizer, index, record.rank)} ({parameter.dtype}) is lost for "
        f"{lost:.0f} % of its elements in half of the steps: it is smaller than half a unit in the last place",
        "likely",
        "keep master weights in float32 (autocast instead of model.to(bfloat16)), or round stochastically",
        step=steps[0].step,
        ranks=(record.rank,),
        line=table.made,
    )


def _no_update(case: Comparison, record: RankRecord, steps: list[Step], index: int) -> Broken | None:
    table = record.tables[steps[0].optimizer]
    parameter = table.parameters[index]
    changed = _changed_parts(steps, index, parameter)
    moved = [step for step in steps if _is_moved(step, index)]
    if changed and any(_rate_of(step, parameter) == 0 for step in moved):
        return _never_a_rate(case, record, steps[0].optimizer, index)
    if not changed or _changes(steps, index) or not _not_tiny(moved, index):
        return None
    return Broken(
        f"{case.name(table.optimizer, index, record.rank)} does not change in {len(changed)} steps although "
        "it has a gradient and the learning rate is not 0",
        "likely",
        "does the optimizer hold the tensor that the model uses? `.to()`, `.half()` or a wrapper may have replaced it",
        step=steps[0].step,
        ranks=(record.rank,),
        line=table.made,
    )


def _rate_of(step: Step, parameter: Parameter) -> float | None:
    """Return the learning rate of a parameter's group; None if it is not known."""
    group = parameter.group
    return step.lr[group] if group is not None and group < len(step.lr) else None


def _never_a_rate(case: Comparison, record: RankRecord, optimizer: int, index: int) -> Broken | None:
    """Report a parameter whose group has a learning rate of 0 in all steps, while other groups never have."""
    table, steps = record.tables[optimizer], record.steps_of(optimizer)
    group = table.parameters[index].group
    if group is None or not all(_is_0_for(step.lr, group) for step in steps):
        return None
    names = [
        case.name(optimizer, place, record.rank) for place, each in enumerate(table.parameters) if each.group == group
    ]
    return Broken(
        f"the learning rate of {some_of(names, MOST_NAMES)} is 0 in all of {len(steps)} steps, although it has "
        "gradients: nothing trains it",
        "possible",
        "for layers that shall stay as they are, set requires_grad=False; new layers, such as a neck between a "
        "pretrained part and a head, belong to a group with a learning rate",
        step=steps[0].step,
        ranks=(record.rank,),
        line=table.made,
    )


def _is_0_for(rates: list[float | None], group: int) -> bool:
    """True if one group of an optimizer has a learning rate of 0, and all others have one above 0."""
    return rates[group] == 0 and all(rate for place, rate in enumerate(rates) if place != group)


def _is_moved(step: Step, index: int) -> bool:
    """True if a parameter has a gradient that is not zero."""
    gradient = step.gradient(index)
    return gradient is not None and bool(gradient.norm)


def _changes(steps: list[Step], index: int) -> bool:
    """True if some step changed a bit of a parameter."""
    return any(step.weight_bits(index) not in (None, step.before[index]) for step in steps)


def _not_tiny(steps: list[Step], index: int) -> bool:
    """True if the gradient is large enough for a step of plain gradient descent to change the parameter."""
    for step in steps:
        gradient, weight = step.gradient(index), step.weights[index]
        rates = [rate for rate in step.lr if rate]
        if gradient is None or weight is None or not rates or gradient.norm is None or weight.norm is None:
            return False
        if gradient.norm * min(rates) <= 1e-6 * weight.norm:
            return False
    return True


def types_of_state(case: Comparison) -> Broken | None:
    """Find weights and moments that are kept in half precision."""
    case.require_steps()
    half = False
    for record, step in _sampled(case):
        table = record.tables.get(step.optimizer)
        if table is None:
            continue
        for index, kinds in enumerate(step.state[: len(table.parameters)]):
            parameter = table.parameters[index]
            low = [kind for kind in kinds if kind in _LOW]
            half = half or parameter.dtype in _LOW
            if parameter.dtype in _LOW and low:
                return Broken(
                    f"the weights and the optimizer's state of {case.name(step.optimizer, index, record.rank)} are "
                    f"in {low[0]}: small updates are lost",
                    "possible",
                    "keep weights and state in float32 and compute in bfloat16 with autocast or FSDP's mixed precision",
                    step=step.step,
                    ranks=(record.rank,),
                    line=table.lowered or table.made,
                )
    modules = (module for record in case.records.values() for module in record.modules.values())
    lowered = next((module.lowered for module in modules if module.lowered), None)
    if lowered is not None:
        record = case.any
        forwards = (forward for step in record.steps for forward in step.forwards if forward.grad)
        return Broken(
            f"the buffers {some_of(lowered, MOST_NAMES)} are in half precision, while all weights are in "
            "float32: frequencies and positions, as of RoPE, are rounded",
            "possible",
            "keep such buffers in float32, and convert what is computed from them",
            step=1,
            ranks=(record.rank,),
            line=next((forward.line for forward in forwards), None),
        )
    if half:
        raise NotObservable("some weights are in half precision, and the optimizer keeps no state in it")
    return None


@dataclass(frozen=True)
class _BadStep:
    """A step of a rank after which a weight is not finite."""

    rank: int
    step: Step
    weight: int
    """The first weight that is not finite, by its index in the optimizer."""
    gradient: int | None
    """The first gradient that was not; None if all were."""
    output: Call | None
    """The first module's output that was not, if one was seen."""


def numbers_stay_finite(case: Comparison) -> Broken | None:
    """Find the first step with a NaN or an infinity, the rank and the module."""
    case.require_steps()
    bad_steps = list(_bad_steps(case))
    if not bad_steps:
        return None
    first = min(bad_steps, key=lambda bad: (bad.step.number, bad.output is None, bad.rank))
    rank, step = first.rank, first.step
    ranks = tuple(sorted({bad.rank for bad in bad_steps if bad.step.number == step.number}))
    if first.output is not None:
        what, line = f"the output of {first.output.module} is the first that is not finite", first.output.line
    elif first.gradient is not None:
        what = f"the gradient of {case.name(step.optimizer, first.gradient, rank)} is not finite"
        line = step.backwards[-1].line if step.backwards else step.line
    else:
        what, line = f"{case.name(step.optimizer, first.weight, rank)} is not finite after the step", step.line
    return Broken(
        f"step {step.number} on rank {rank}: {what}, and the optimizer used it",
        "certain",
        "look at the module's input and the loss of this rank; lower the learning rate or clip; with float16, use a "
        "GradScaler, which skips such steps",
        step=step.number,
        ranks=ranks,
        line=line,
    )


def _bad_steps(case: Comparison) -> Iterator[_BadStep]:
    """Yield the sampled steps after which a weight is not finite.

    An output alone may be infinite on purpose, as a mask is, and a GradScaler skips steps inside of a fused optimizer.
    """
    for record, step in _sampled(case):
        weight = _first_not_finite(step.weights)
        if weight is not None:
            output = next((call for call in step.calls if call.call == "not_finite"), None)
            yield _BadStep(record.rank, step, weight, _first_not_finite(step.gradients or []), output)


def _first_not_finite(tensors: Sequence[Fingerprint | None]) -> int | None:
    return next((index for index, each in enumerate(tensors) if each is not None and each.norm is None), None)


def _sampled(case: Comparison) -> Iterator[tuple[RankRecord, Step]]:
    """Yield the sampled steps of all ranks, in order."""
    every = [(step.number, record.rank, record, step) for record in case.records.values() for step in record.steps]
    for _, _, record, step in sorted(every, key=lambda each: each[:2]):
        if step.gradients is not None:
            yield record, step


def trained_layers(case: Comparison) -> Broken | None:
    """Find a model of which an optimizer holds many layers and only norms are trained."""
    case.require_steps()
    for record in case.records.values():
        for module in record.modules.values():
            count, learns = module.adapters
            if count and not learns and record.trains(module):
                return Broken(
                    f"all {count} tensors of the model's adapters (lora_) are frozen, while others are trained",
                    "likely",
                    "freeze the base before the adapters are added, or by names that the adapters do not have; load "
                    "adapters with `is_trainable=True`",
                    step=1,
                    ranks=(record.rank,),
                    line=module.adapters_selected or next((table.made for table in record.tables.values()), None),
                )
        for table in record.tables.values():
            trained = [each for each in table.parameters if each.trained]
            frozen = [each for each in table.parameters if not each.trained]
            if trained and frozen and all("Norm" in each.owner for each in trained):
                return Broken(
                    f"the optimizer holds {some_of(_names_of(frozen), MOST_NAMES)}, which need no gradient; of all "
                    f"that it holds, only the norms {some_of(_names_of(trained), MOST_NAMES)} are trained",
                    "possible",
                    "set requires_grad=True for the layers that shall learn, at least for a new head",
                    step=1,
                    ranks=(record.rank,),
                    line=frozen[0].selected or table.made,
                )
    return None


def _names_of(parameters: list[Parameter]) -> list[str]:
    return [each.names[0] if each.names else "a tensor" for each in parameters]


def learning_rate_schedules(case: Comparison) -> Broken | None:
    """Find a training that continues after its learning rate has fallen to zero."""
    case.require_steps()
    for record in case.records.values():
        for optimizer in record.tables:
            steps = record.steps_of(optimizer)
            last = next((place for place, step in reversed([*enumerate(steps)]) if any(step.lr)), None)
            if last is None or not any(any(step.lr) for step in steps[:last]):
                continue
            idle = steps[last + 1 :]
            if len(idle) >= max(_IDLE_STEPS, len(steps) / 10) and all(rate == 0 for step in idle for rate in step.lr):
                return Broken(
                    f"the learning rate is 0 since step {idle[0].step}, and {len(idle)} steps follow it, which change "
                    "nothing: the schedule is shorter than the training",
                    "likely",
                    "count the schedule's steps as the optimizer takes them: batches of all epochs divided once by "
                    "the micro-batches of a step",
                    step=idle[0].step,
                    ranks=(record.rank,),
                    line=record.tables[optimizer].schedule or idle[0].line,
                )
            again = _schedules_again(record, optimizer)
            if again is not None:
                return again
    return None


def _schedules_again(record: RankRecord, optimizer: int) -> Broken | None:
    """Find a line of the program that steps a scheduler several times between two steps of its optimizer."""
    steps = record.steps_of(optimizer)[1:]
    counts = [
        Counter(call.line for call in step.calls if _steps_scheduler(call, optimizer) and call.line is not None)
        for step in steps
    ]
    for line in {line for count in counts for line in count}:
        several = [count[line] for count in counts if count[line] > 1]
        if len(several) > 1 and len(several) > len(steps) / 2:
            return Broken(
                f"the scheduler at {line} changes the learning rate {several[0]} times for each step of its optimizer",
                "possible",
                "step the scheduler once after each `optimizer.step()`, not for each micro-batch; if its length counts "
                "micro-batches, nothing is wrong",
                step=steps[0].step,
                ranks=(record.rank,),
                line=line,
            )
    return None


def _steps_scheduler(call: Call, optimizer: int) -> bool:
    return call.call == "schedule" and call.direct and call.optimizer == optimizer


RULES = (
    Rule("cleared", "each step begins with cleared gradients", gradients_cleared),
    Rule("training-mode", "the model is in training mode while it trains", evaluation_mode),
    Rule("evaluation", "an evaluation draws no random numbers, and does not come too early", evaluations_draw_nothing),
    Rule("autocast", "autocast reaches the layers that are called under it", autocast_reaches),
    Rule("initialized", "each line draws a parameter once", initialized_once),
    Rule("optimizer", "an optimizer holds every parameter that has a gradient", in_an_optimizer),
    Rule("frozen", "more than norms is trained of what an optimizer holds", trained_layers),
    Rule("unused", "every parameter of an optimizer gets a gradient", gradients_arrive),
    Rule("changes", "a step changes what has a gradient", steps_change_weights),
    Rule(
        "schedule", "the learning rate follows the steps, and is above 0 until training ends", learning_rate_schedules
    ),
    Rule("tied", "tied weights stay equal", tied_weights),
    Rule("graphs", "no graph is kept from step to step", graphs_kept),
    Rule("state-type", "weights and optimizer state are kept in float32", types_of_state),
    Rule("finite", "loss, gradients and weights are finite", numbers_stay_finite),
)

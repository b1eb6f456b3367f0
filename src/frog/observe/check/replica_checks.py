"""Rules on replicas: those on weights and gradients, and what ranks decide together: rates, clipping, steps."""

from __future__ import annotations

from collections.abc import Sequence

from frog.observe.check.comparison import Comparison, Moment, NotObservable
from frog.observe.check.makeup_checks import clipped_before_the_end, shards_scaled_unequally
from frog.observe.check.rank_records import Call, Step
from frog.observe.check.replica_evidence import differs, replicas_of
from frog.observe.check.replica_gradients import gradients_when_used
from frog.observe.check.replica_weights import (
    statistics_in_evaluations,
    weights_after_a_step,
    weights_at_the_start,
    weights_between_steps,
    weights_of_the_owners,
)
from frog.observe.check.rule import Broken, Rule


def learning_rates(case: Comparison) -> Broken | None:
    """Find learning rates that differ between replicas."""
    replicas = {replica.optimizer: replica for replica in replicas_of(case)}
    for optimizer, replica in replicas.items():
        for moment in case.moments(optimizer):
            rates = {rank: tuple(step.lr) for rank, step in moment.of.items() if rank in replica.ranks}
            if len(set(rates.values())) > 1:
                made = case.records[replica.ranks[0]].tables[optimizer].made
                changes = [
                    call.line
                    for rank in rates
                    for number, call in case.records[rank].calls("schedule")
                    if number <= moment.of[rank].number
                ]
                shown = ", ".join(
                    f"{rate[0]:.6g} on rank {rank}" for rank, rate in rates.items() if rate and rate[0] is not None
                )
                return Broken(
                    f"the learning rates differ since step {moment.step}: {shown}",
                    "certain" if replica.known else "possible",
                    "compute the learning rate from numbers that all ranks share: the step, not the rank or a local "
                    "loss",
                    step=moment.step,
                    ranks=tuple(rates),
                    line=changes[-1] if changes else made,
                )
    return None


def clipping_norms(case: Comparison) -> Broken | None:
    """Find gradients clipped by a norm that differs between ranks which reduce together."""
    case.require_steps()
    case.require_ranks()
    seen = False
    for moment in case.all_sampled():
        clips = {
            rank: [call for call in step.calls if call.call == "clip" and call.norm is not None]
            for rank, step in moment.of.items()
        }
        counts = {len(calls) for calls in clips.values()}
        if len(moment.of) < 2 or len(counts) > 1 or counts == {0}:
            continue
        seen = True
        for calls in zip(*clips.values(), strict=True):
            broken = _clipped_by_own_norms(case, moment, calls)
            if broken is not None:
                return broken
    broken = shards_scaled_unequally(case) or clipped_before_the_end(case)
    if broken is None and not seen:
        raise NotObservable("no call of torch.nn.utils.clip_grad_norm_ was sampled on all ranks")
    return broken


def _clipped_by_own_norms(case: Comparison, moment: Moment, calls: Sequence[Call]) -> Broken | None:
    """Report the clipping of a step, with its call on each rank, if it scales the ranks' gradients differently."""
    norms = [call.norm for call in calls if call.norm is not None]
    used = any(call.limit is not None and norm > call.limit for call, norm in zip(calls, norms, strict=False))
    if not used or max(norms) - min(norms) <= 1e-6 * max(norms):
        return None
    line, values = calls[0].line, ", ".join(f"{norm:.6g}" for norm in norms[:8])
    if _end_equal(case, moment):
        return Broken(
            f"since step {moment.step}, each rank clips its own gradients at {line} before they are "
            f"averaged, by {values}",
            "likely",
            "clip once in a step, after the last micro-batch, whose backward pass averages the gradients",
            step=moment.step,
            ranks=tuple(moment.of),
            line=line,
        )
    exchanges = _reduces_gradients(case, moment) or case.has_messages or case.is_sharded or case.replicas
    if not exchanges or not _has_parts(case, moment):
        return None
    at = f" at {line}" if line is not None else ""  # Frog's trainer clips without the user
    return Broken(
        f"since step {moment.step}, each rank clips by a norm of its own{at}: {values}",
        "likely",
        "the norm must be that of the whole gradient: add the squares over the ranks that hold parts of "
        "it (all_reduce), then take the root; DTensors and FSDP's own clip_grad_norm_ do this",
        step=moment.step,
        ranks=tuple(moment.of),
        line=line,
    )


def _end_equal(case: Comparison, moment: Moment) -> bool:
    """True if an optimizer holds replicas only, and their gradients are equal when it uses them."""
    replicas = [replica for replica in case.replicas if replica.optimizer == moment.optimizer]
    if not replicas or _has_parts(case, moment) or not all(replica.known for replica in replicas):
        return False
    return not any(differs(moment, replica, Step.gradient_bits) for replica in replicas)


def _has_parts(case: Comparison, moment: Moment) -> bool:
    """True if a rank's optimizer holds parameters that other ranks do not: the norms of replicas differ only if their
    gradients do, which is another rule's finding."""
    held = {replica.index for replica in case.replicas if replica.optimizer == moment.optimizer}
    table = case.any.tables.get(moment.optimizer)
    if table is not None and all(each.whole and each.whole == each.shape for each in table.parameters):
        return False  # a flat optimizer with a whole model, as DiLoCo's between two rounds
    return table is None or len(held) < len(table.parameters)


def _reduces_gradients(case: Comparison, moment: Moment) -> bool:
    """True if a step has a reduction that is as large as its largest parameter."""
    table = case.any.tables.get(moment.optimizer)
    largest = max((parameter.numel for parameter in table.parameters), default=0) if table is not None else 0
    calls = (call for step in moment.of.values() for call in step.calls)
    return any(
        call.call in ("all_reduce", "reduce_scatter_tensor", "reduce") and call.elements >= largest for call in calls
    )


def same_number_of_steps(case: Comparison) -> Broken | None:
    """Find ranks that took another number of optimizer steps."""
    replicas = replicas_of(case)
    if any(record.end is None for record in case.records.values()):
        raise NotObservable("not all ranks came to their end")
    for optimizer in {replica.optimizer for replica in replicas}:
        counts = {rank: len(record.steps_of(optimizer)) for rank, record in case.records.items()}
        passes = {
            sum(len(step.backwards) for step in record.steps) + (record.end.backwards if record.end is not None else 0)
            for record in case.records.values()
        }
        if len(passes) > 1:  # ranks with fewer batches end earlier, as DDP's `join` allows
            raise NotObservable("the ranks ran different numbers of backward passes")
        if len(set(counts.values())) > 1:
            few, most = min(counts, key=lambda rank: counts[rank]), max(counts, key=lambda rank: counts[rank])
            return Broken(
                f"rank {few} took {counts[few]} optimizer steps, rank {most} {counts[most]}: some ranks skip steps "
                "alone",
                "certain" if any(replica.known for replica in replicas) else "possible",
                "decide on all ranks together whether to skip a step: reduce the condition (a NaN, a gradient norm) "
                "first",
                step=counts[few] + 1,
                ranks=(few,),
                line=case.records[most].steps_of(optimizer)[-1].line,
            )
    return None


RULES = (
    Rule("weights-start", "replicas begin with equal weights", weights_at_the_start),
    Rule("weights-between", "only the optimizer changes replicas' weights", weights_between_steps),
    Rule("gradients", "replicas use equal gradients in each step", gradients_when_used),
    Rule("learning-rates", "replicas use equal learning rates", learning_rates),
    Rule("weights-after", "a step leaves replicas equal", weights_after_a_step),
    Rule("clipping", "gradients are clipped by the norm of the whole", clipping_norms),
    Rule("weights-forward", "a forward uses the weights that the last step made", weights_of_the_owners),
    Rule("buffers", "replicas evaluate with equal running statistics", statistics_in_evaluations),
    Rule("steps", "all ranks take the same number of steps", same_number_of_steps),
)

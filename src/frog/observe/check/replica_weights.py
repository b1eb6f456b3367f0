"""Rules on the weights of replicas: equal at the start, between steps, after each and in evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from frog.core.units import some_of, span
from frog.observe.check.comparison import MOST_NAMES, Comparison, Moment, NotObservable, Replica
from frog.observe.check.rank_records import Place, Step
from frog.observe.check.replica_evidence import differs, line_of_call, made_at, names_of, replicas_of, values_of
from frog.observe.check.rule import Broken


def weights_at_the_start(case: Comparison) -> Broken | None:
    """Find replicas that differ before the first step."""
    different = []
    for replica in replicas_of(case):
        moments = case.sampled(replica.optimizer)
        if not moments or not replica.known or not differs(moments[0], replica, _bits_before):
            continue
        if _changed_since_ddp(moments[0], replica) is None:
            different.append(replica)
    if not different:
        return None
    step = case.sampled(different[0].optimizer)[0]
    alone = _loads_of_some(case)
    how = f": only {span(alone[0])} called load_state_dict, at {alone[1]}" if alone else ""
    return Broken(
        f"the ranks' weights already differ before the first optimizer step in {names_of(case, different)}{how}",
        "certain",
        "load on all ranks, or before DDP wraps the model, since DDP sends the weights of rank 0 only when it is "
        "created"
        if alone
        else "give all ranks the same weights before the first step: the same seed, or broadcast those of rank 0",
        step=step.step,
        ranks=different[0].ranks,
        line=alone[1] if alone else made_at(case, different[0]),
        evidence=values_of(case, step, different, "weights before the step"),
    )


def _changed_since_ddp(moment: Moment, replica: Replica) -> Place | None:
    """Return the line that changed a replica on some ranks after DDP had made it equal and before the first step."""
    if not replica.known or moment.step != 1 or not differs(moment, replica, _bits_before):
        return None
    return _written_by_some(moment, replica, after="ddp")


def _loads_of_some(case: Comparison) -> tuple[list[int], Place | None] | None:
    """Return the ranks that loaded a model before the first step, and where, if others did not."""
    loads = {
        rank: [call for number, call in record.calls("load_model") if number == 1 and call.line is not None]
        for rank, record in case.records.items()
    }
    most = max(len(calls) for calls in loads.values())
    if most == min(len(calls) for calls in loads.values()):
        return None
    some = [rank for rank, calls in loads.items() if len(calls) == most]
    return some, loads[some[0]][-1].line


def weights_between_steps(case: Comparison) -> Broken | None:
    """Find replicas that something else than the optimizer changed on some ranks."""
    seen = False
    for replica in replicas_of(case):
        moments = case.sampled(replica.optimizer)
        line = _changed_since_ddp(moments[0], replica) if moments else None
        if line is not None:
            return _changed_before_the_first_step(case, moments[0], replica, line)
        for before, now in pairwise(moments):
            if now.step != before.step + 1 or not set(replica.ranks) <= set(now.of) & set(before.of):
                continue
            if differs(before, replica, Step.weight_bits):
                break
            seen = True
            if differs(now, replica, _bits_before):
                return _changed_between(case, before, now, replica)
    if not seen:
        raise NotObservable("no two steps in a row were sampled on all ranks with equal weights between them")
    return _evaluated_weights_stay(case)


def _changed_before_the_first_step(case: Comparison, first: Moment, replica: Replica, line: Place) -> Broken:
    return Broken(
        f"{case.name(replica.optimizer, replica.index)} changed at {line} on some of {span([*replica.ranks])} "
        "after DDP had sent the same weights to all, and before the first step: the replicas differ since then",
        "certain",
        "change weights on all ranks, or on one and send them to the others",
        step=first.step,
        ranks=replica.ranks,
        line=line,
        evidence=values_of(case, first, [replica], "weights before the step"),
    )


def _changed_between(case: Comparison, before: Moment, now: Moment, replica: Replica) -> Broken:
    last = before.of[replica.ranks[0]].weight_bits(replica.index)
    own = [rank for rank in replica.ranks if _bits_before(now.of[rank], replica.index) != last]
    return Broken(
        f"{case.name(replica.optimizer, replica.index)} changed on {span(own or list(replica.ranks))} "
        f"between steps {before.step} and {now.step}, not by the optimizer: the replicas differ since then",
        "certain" if replica.known else "possible",
        f"look between {_line(before, own)} and {_line(now, own)} for what writes to the weights on some "
        "ranks only: a load, a clamp, an average of weights, an initialization",
        step=now.step,
        ranks=tuple(own),
        line=line_of_call(now, own, "load_model") or _written_by_some(now, replica) or now.of[(own or [0])[0]].line,
        evidence=values_of(case, now, [replica], "weights before the step"),
    )


def _evaluated_weights_stay(case: Comparison) -> Broken | None:
    """Find weights that were changed for evaluations, such as averaged ones, and that the next step begins with."""
    for optimizer in case.optimizers:
        changed, kept = [], 0
        for before, now in pairwise(case.sampled(optimizer)):
            rank = next(iter(now.of))
            if now.step != before.step + 1 or rank not in before.of or not before.of[rank].weights:
                continue
            step = now.of[rank]
            same = all(bits == before.of[rank].weight_bits(index) for index, bits in enumerate(step.before))
            evaluates = any(not forward.grad for forward in step.forwards)
            lines = [call.line for call in step.calls if call.call in ("written", "load_model") and call.line]
            if not same and not (evaluates and lines):
                return None  # weights that are constrained, or averaged over ranks
            kept += same
            if not same:
                changed.append((now, rank, lines[-1]))
        if changed and kept >= len(changed):
            moment, rank, line = changed[0]
            return Broken(
                f"before step {moment.step}, other weights were put into the model at {line} and evaluated, and "
                f"training goes on with them: so {len(changed)} times, while {kept} other steps begin with what the "
                "step before left",
                "possible",
                "put the trained weights back after an evaluation of averaged ones; if training shall go on from "
                "weights that were loaded, nothing is wrong",
                step=moment.step,
                ranks=tuple(moment.of),
                line=line,
            )
    return None


def _written_by_some(moment: Moment, replica: Replica, after: str = "") -> Place | None:
    """Return a line that changed parameters by hand on some ranks of a replica and not on others, before a step.

    after: the call after which it must have done so.
    """
    lines: dict[int, list[Place]] = {}
    for rank in replica.ranks:
        calls = moment.of[rank].calls
        begin = max((number for number, call in enumerate(calls, start=1) if call.call == after), default=0)
        if after and not begin:
            return None
        own = (call.line for call in calls[begin:] if call.call == "written")
        lines[rank] = [line for line in own if line is not None]
    every = [line for own in lines.values() for line in own]
    return next((line for line in every if not all(line in own for own in lines.values())), None)


def weights_after_a_step(case: Comparison) -> Broken | None:
    """Find replicas that a step made different although gradients and weights were equal before it."""
    for replica, moment in _moments(case):
        if differs(moment, replica, _bits_before) or differs(moment, replica, Step.gradient_bits):
            continue
        if not differs(moment, replica, Step.weight_bits):
            continue
        if len({tuple(step.lr) for step in moment.of.values()}) > 1:
            continue
        loaded = _loaded_optimizer_of_some(case, moment)
        line = loaded[1] if loaded else moment.of[replica.ranks[0]].line
        why = f": only {span(loaded[0])} loaded the optimizer's state, at {loaded[1]}" if loaded else ""
        return Broken(
            f"step {moment.step} made {case.name(replica.optimizer, replica.index)} different on "
            f"{span([*replica.ranks])} although its weights, gradients and learning rates were equal: the "
            f"optimizers' states differ{why}",
            "certain" if replica.known else "possible",
            "give the optimizers of all ranks the same state and the same arguments: load it on all ranks, and "
            "compare betas, momentum and weight decay",
            step=moment.step,
            ranks=replica.ranks,
            line=line,
            evidence=values_of(case, moment, [replica], "weights after the step"),
        )
    return None


def _loaded_optimizer_of_some(case: Comparison, moment: Moment) -> tuple[list[int], Place | None] | None:
    loads = {
        rank: [call for number, call in record.calls("load_optimizer") if number <= moment.of[rank].number]
        for rank, record in case.records.items()
        if rank in moment.of
    }
    some = [rank for rank, calls in loads.items() if calls]
    return (some, loads[some[0]][-1].line) if some and len(some) < len(loads) else None


def weights_of_the_owners(case: Comparison) -> Broken | None:
    """Find forwards with old weights, where each rank's optimizer holds a part of the parameters and sends it."""
    case.require_steps()
    seen = False
    made = _made_by_owners(case)
    for rank, record in case.records.items():
        begun = next((forward.others for step in record.steps[:1] for forward in step.forwards if forward.others), {})
        # where this rank's optimizers have a shard of it, the forward gathers it, maybe in another type
        own = {name for table in record.tables.values() for each in table.parameters for name in each.names}
        shared = [name for name, bits in begun.items() if made.get((0, name)) == {bits} and name not in own]
        for before, now in pairwise(record.steps):
            forward = next((each for each in now.forwards if each.others), None)
            if forward is None:
                continue
            for name in shared:
                new, used = made.get((before.number, name), set()), forward.others.get(name)
                seen = seen or bool(new)
                if len(new) == 1 and used is not None and used not in new:
                    return Broken(
                        f"the forward at {forward.line} before step {now.number} uses other weights of {name} on rank "
                        f"{rank} than its owner's optimizer made in step {before.number}",
                        "possible" if case.has_exchanges or case.has_messages else "likely",
                        "send all parameters to all ranks after each step, and wait for them before the next forward",
                        step=now.number,
                        ranks=(rank,),
                        line=forward.line,
                    )
    if not seen:
        raise NotObservable("each rank's optimizers hold all parameters of its model")
    return None


def _made_by_owners(case: Comparison) -> dict[tuple[int, str], set[int | None]]:
    """Return the bits of each parameter that optimizers hold, by step and name; step 0 is before the first."""
    made: dict[tuple[int, str], set[int | None]] = {}
    for record in case.records.values():
        for step in record.steps:
            table = record.tables.get(step.optimizer)
            for index, parameter in enumerate(table.parameters if table is not None and step.weights else ()):
                for name in parameter.names[:1]:
                    made.setdefault((step.number, name), set()).add(step.weight_bits(index))
                    if step.number == 1:
                        made.setdefault((0, name), set()).add(step.before[index])
    return made


def statistics_in_evaluations(case: Comparison) -> Broken | None:
    """Find evaluations of replicas with running statistics that each rank has gathered from its own samples."""
    case.require_ranks()
    groups = {replica.ranks for replica in case.replicas if replica.known}
    seen = False
    for ranks in sorted(groups):
        evaluations = {
            rank: {
                step.number: forward
                for step in case.records[rank].steps
                for forward in step.forwards
                if forward.buffers and not forward.grad
            }
            for rank in ranks
        }
        for number in sorted(set.intersection(*(set(each) for each in evaluations.values()))):
            forwards = [evaluations[rank][number] for rank in ranks]
            names = [name for name in forwards[0].buffers if all(name in each.buffers for each in forwards)]
            seen = seen or bool(names)
            different = [name for name in names if len({each.buffers[name] for each in forwards}) > 1]
            if different:
                module = case.records[ranks[0]].modules[forwards[0].module]
                stays = module.broadcasts is False
                return Broken(
                    f"the evaluation at {forwards[0].line} before step {number} uses other running statistics on each "
                    f"of {span([*ranks])}: {some_of(different, MOST_NAMES)}"
                    + (f"; DDP, at {module.made}, does not send buffers" if stays else ""),
                    "likely" if stays else "possible",
                    "let DDP send them (broadcast_buffers=True, and call the wrapper), use SyncBatchNorm, or average "
                    "them over the ranks before an evaluation and before they are saved",
                    step=number,
                    ranks=ranks,
                    line=(module.made if stays else None) or forwards[0].line,
                )
    if not seen:
        raise NotObservable("no evaluation of replicas with running statistics of their own was sampled")
    return None


def _moments(case: Comparison) -> Iterator[tuple[Replica, Moment]]:
    """Yield each sampled step with each replica of its optimizer."""
    replicas = replicas_of(case)
    for moment in case.all_sampled():
        for replica in replicas:
            if replica.optimizer == moment.optimizer and set(replica.ranks) <= set(moment.of):
                yield replica, moment


def _bits_before(step: Step, index: int) -> int | None:
    return step.before[index]


def _line(moment: Moment, ranks: list[int]) -> str:
    step = moment.of.get(ranks[0] if ranks else 0) or next(iter(moment.of.values()))
    return f"step {moment.step} at {step.line}"

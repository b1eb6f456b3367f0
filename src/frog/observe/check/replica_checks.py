"""Rules on replicas: equal weights, gradients, learning rates and decisions on all ranks that hold the same model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from frog.core.units import some_of, span
from frog.observe.check.comparison import MOST_NAMES, Comparison, Moment, NotObservable, Replica
from frog.observe.check.makeup_checks import clipped_before_the_end, shards_scaled_apart
from frog.observe.check.rank_records import Backward, Call, Fingerprint, Parameter, Place, Step, seeded_apart
from frog.observe.check.rule import Broken, Rule, Sure

_SAME_FACTOR = 1e-5
"""Largest relative difference between the ratios of several norms that counts as one factor; float32 keeps 6e-8."""


def _replicas(case: Comparison) -> list[Replica]:
    case.require_steps()
    case.require_ranks()
    if not case.replicas:
        why = "the weights are sharded" if case.is_sharded else "no parameter is known to be equal on several ranks"
        raise NotObservable(why)
    if next(case.all_sampled(), None) is None:
        raise NotObservable("the ranks have no sampled step in common")
    return case.replicas


# ---- weights ---------------------------------------------------------------------------------------------------------


def weights_at_the_start(case: Comparison) -> Broken | None:
    """Find replicas that differ before the first step."""
    different = []
    for replica in _replicas(case):
        moments = case.sampled(replica.optimizer)
        if not moments or not replica.known or not _differs(moments[0], replica, _bits_before):
            continue
        if _changed_since_ddp(moments[0], replica) is None:
            different.append(replica)
    if not different:
        return None
    step = case.sampled(different[0].optimizer)[0]
    alone = _loads_of_some(case)
    how = f": only {span(alone[0])} called load_state_dict, at {alone[1]}" if alone else ""
    return Broken(
        f"the ranks' weights already differ before the first optimizer step in {_names(case, different)}{how}",
        "certain",
        "load on all ranks, or before DDP wraps the model, since DDP sends the weights of rank 0 only when it is "
        "created"
        if alone
        else "give all ranks the same weights before the first step: the same seed, or broadcast those of rank 0",
        step=step.step,
        ranks=different[0].ranks,
        line=alone[1] if alone else _made(case, different[0]),
        evidence=_values(case, step, different, "weights before the step"),
    )


def _changed_since_ddp(moment: Moment, replica: Replica) -> Place | None:
    """Return the line that changed a replica on some ranks after DDP had made it equal and before the first step."""
    if not replica.known or moment.step != 1 or not _differs(moment, replica, _bits_before):
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
    for replica in _replicas(case):
        moments = case.sampled(replica.optimizer)
        line = _changed_since_ddp(moments[0], replica) if moments else None
        if line is not None:
            return Broken(
                f"{case.name(replica.optimizer, replica.index)} changed at {line} on some of {span([*replica.ranks])} "
                "after DDP had sent the same weights to all, and before the first step: the replicas differ since then",
                "certain",
                "change weights on all ranks, or on one and send them to the others",
                step=moments[0].step,
                ranks=replica.ranks,
                line=line,
                evidence=_values(case, moments[0], [replica], "weights before the step"),
            )
        for before, now in pairwise(moments):
            if now.step != before.step + 1 or not set(replica.ranks) <= set(now.of) & set(before.of):
                continue
            if _differs(before, replica, Step.weight_bits):
                break
            seen = True
            begun = {rank: now.of[rank].before[replica.index] for rank in replica.ranks}
            if len(set(begun.values())) > 1:
                last = before.of[replica.ranks[0]].weight_bits(replica.index)
                own = [rank for rank, bits in begun.items() if bits != last]
                return Broken(
                    f"{case.name(replica.optimizer, replica.index)} changed on {span(own or list(replica.ranks))} "
                    f"between steps {before.step} and {now.step}, not by the optimizer: the replicas differ since "
                    "then",
                    "certain" if replica.known else "possible",
                    f"look between {_line(before, own)} and {_line(now, own)} for what writes to the weights on some "
                    "ranks only: a load, a clamp, an average of weights, an initialization",
                    step=now.step,
                    ranks=tuple(own),
                    line=_call_line(now, own, "load_model")
                    or _written_by_some(now, replica)
                    or now.of[(own or [0])[0]].line,
                    evidence=_values(case, now, [replica], "weights before the step"),
                )
    if not seen:
        raise NotObservable("no two steps in a row were sampled on all ranks with equal weights between them")
    return _evaluated_weights_stay(case)


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
        if _differs(moment, replica, _bits_before) or _differs(moment, replica, Step.gradient_bits):
            continue
        if not _differs(moment, replica, Step.weight_bits):
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
            evidence=_values(case, moment, [replica], "weights after the step"),
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
        shared = [name for name, bits in begun.items() if made.get((0, name)) == {bits}]
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
    found: dict[tuple[int, str], set[int | None]] = {}
    for record in case.records.values():
        for step in record.steps:
            table = record.tables.get(step.optimizer)
            for index, parameter in enumerate(table.parameters if table is not None and step.weights else ()):
                for name in parameter.names[:1]:
                    found.setdefault((step.number, name), set()).add(step.weight_bits(index))
                    if step.number == 1:
                        found.setdefault((0, name), set()).add(step.before[index])
    return found


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
            apart = [name for name in names if len({each.buffers[name] for each in forwards}) > 1]
            if apart:
                module = case.records[ranks[0]].modules[forwards[0].module]
                stays = module.broadcasts is False
                return Broken(
                    f"the evaluation at {forwards[0].line} before step {number} uses other running statistics on each "
                    f"of {span([*ranks])}: {some_of(apart, MOST_NAMES)}"
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


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradients_when_used(case: Comparison) -> Broken | None:
    """Find gradients that differ between replicas when the optimizer uses them."""
    moment, different = _first_different(case)
    if moment is None:
        return None
    found = _different_gradients(case, moment, different)
    if found.sure == "certain" and _averages_later(case, different):
        return replace(found, sure="possible", advice=f"{found.advice}. Local SGD, which averages weights, may do this")
    return found


def _averages_later(case: Comparison, different: list[Replica]) -> bool:
    """True if the program itself also reduces replicas in DDP: as many elements as they have, between two steps."""
    if not all(case.is_ddp(replica) for replica in different):
        return False
    elements: dict[int, int] = {}
    for number, call in case.any.calls("all_reduce"):
        elements[number] = elements.get(number, 0) + call.elements
    parameters = (case.parameter(replica.optimizer, replica.index) for replica in different)
    return max(elements.values(), default=0) >= sum(each.numel for each in parameters if each is not None)


def _different_gradients(case: Comparison, moment: Moment, different: list[Replica]) -> Broken:
    replica = different[0]
    all_of_it = [each for each in case.replicas if each.optimizer == moment.optimizer]
    who = span([*replica.ranks])
    what = f"the gradients of {_names(case, different)} differ between {who} when the optimizer uses them"
    since = f"since step {moment.step}, "
    steps = [moment.of[rank] for rank in replica.ranks]
    known = replica.known
    evidence = _values(case, moment, different, "gradients")
    step = steps[0]
    if (past := _past_the_wrapper(case, moment, replica)) is not None:
        return Broken(
            f"{since}{what}: the forward at {past} calls the module inside DDP, so DDP does not average them",
            "certain",
            "call the wrapper, `model(x)`, not `model.module(x)`",
            step=moment.step,
            ranks=replica.ranks,
            line=past,
            evidence=evidence,
        )
    forwards = [forward for step in steps for forward in step.forwards if forward.grad]
    if known and forwards and all(step.forwards[-1].sync is False for step in steps if step.forwards):
        line = step.forwards[-1].line
        return Broken(
            f"{since}{what}: the last forward before the step, at {line}, is inside DDP's `no_sync`",
            "certain",
            "leave `no_sync` for the last micro-batch of each step: its forward and its backward",
            step=moment.step,
            ranks=replica.ranks,
            line=line,
            evidence=evidence,
        )
    moved = _moved_after_wrapping(case, moment, replica)
    if moved is not None:
        return Broken(
            f"{since}{what}: the model was converted or moved at {moved.line} after DDP had wrapped it: that removes "
            "the hooks with which DDP averages",
            "certain",
            "move and convert the model first, and wrap it then: to(), half(), float(), cuda() and cpu() undo it",
            step=moment.step,
            ranks=replica.ranks,
            line=moved.line,
            evidence=evidence,
        )
    parts = _of_parts(case, moment, replica)
    if parts is not None:
        why, advice, line = parts
        return Broken(
            f"{since}{what}: {why}",
            "certain" if known else "likely",
            advice,
            step=moment.step,
            ranks=replica.ranks,
            line=line,
            evidence=evidence,
        )
    changed = _changed_after_backward(case, moment, different) or _other_order(case, moment, different)
    if changed is not None:
        return changed
    backward = step.backwards[-1].line if step.backwards else None
    if len(different) < len(all_of_it):
        parameter = case.parameter(replica.optimizer, replica.index)
        sure: Sure = "certain" if parameter is not None and parameter.ddp is not None else "possible"
        is_weak = parameter is None or parameter.constant or case.has_exchanges
        if sure == "possible" and any(each.known for each in all_of_it) and not is_weak:
            sure = "likely"
        return Broken(
            f"{since}{what}, while those of {len(all_of_it) - len(different)} other parameters are equal: these are "
            "not reduced",
            sure,
            "put the module into the wrapper too, or reduce its gradients; parameters that are added or replaced "
            "after DDP was created are not in it. Experts and norms of which each rank has its own may differ",
            step=moment.step,
            ranks=replica.ranks,
            line=(parameter.made if parameter is not None else None) or backward,
            evidence=evidence,
        )
    exchanges = case.reduces or known
    return Broken(
        f"{since}{what}: nothing averaged them"
        + ("" if exchanges else ", and the ranks exchange nothing at all: each trains a model of its own"),
        "certain" if known else "possible" if _trains_apart(case, moment) else "likely",
        "wrap the model in DistributedDataParallel, or average each gradient over the ranks before `optimizer.step()`",
        step=moment.step,
        ranks=replica.ranks,
        line=backward or step.line,
        evidence=evidence,
    )


def _of_parts(case: Comparison, moment: Moment, replica: Replica) -> tuple[str, str, Place | None] | None:
    """Explain why ranks that have parts of the same layers compute other gradients: other samples, or other noise."""
    first, *others = replica.ranks
    if case.is_sharded or not any(case.share_layers(first, other) for other in others):
        return None
    for other in (rank for rank in others if case.share_layers(first, rank)):
        pairs = [
            (mine, theirs)
            for mine, theirs in zip(moment.of[first].forwards, moment.of[other].forwards, strict=False)
            if mine.grad and theirs.grad and mine.rows and theirs.rows
        ]
        for mine, theirs in pairs:
            who = f"ranks {first} and {other}, which have parts of the same layers,"
            if not set(mine.rows or ()) & set(theirs.rows or ()):
                return (
                    f"{who} train on other samples, at {mine.line}",
                    "give all ranks that share a model the same batch: divide the samples by the rank in the data "
                    "group, not by the rank in the world. With parts of a sequence, add these gradients",
                    mine.line,
                )
            if mine.rows == theirs.rows and mine.draws and theirs.draws and mine.random != theirs.random:
                return (
                    f"{who} draw other random numbers for the same samples in the forward at {mine.line}, such as "
                    "those of dropout",
                    "seed ranks that share a model alike: with the rank in the data group, not in the world; only "
                    "inside of divided layers may masks differ",
                    mine.line,
                )
    return None


def _trains_apart(case: Comparison, moment: Moment) -> bool:
    """True if the ranks' trainings may differ on purpose: other settings, as in a sweep, equal batches, of which
    replicas gain nothing, or some samples in common and some not, as the folds of a cross-validation have.
    """
    rates = {tuple(step.lr) for step in moment.of.values()}
    rows = {
        str([forward.rows for forward in step.forwards if forward.grad and forward.rows]) for step in moment.of.values()
    }
    if len(rates) > 1 or rows == {"[]"} or len(rows) == 1:
        return True
    samples = [{row for batch in record.batches for row in batch.rows or ()} for record in case.records.values()]
    return any(one & other and one != other for one, other in pairwise(samples))


def _first_different(case: Comparison) -> tuple[Moment | None, list[Replica]]:
    """Return the first step in which gradients of replicas differ, and the replicas."""
    replicas = _replicas(case)
    for moment in case.all_sampled():
        own = [each for each in replicas if each.optimizer == moment.optimizer and set(each.ranks) <= set(moment.of)]
        different = [
            each for each in own if _differs(moment, each, Step.gradient_bits) and not _stay_equal(moment, each)
        ]
        if different:
            return moment, different
    return None, []


def _past_the_wrapper(case: Comparison, moment: Moment, replica: Replica) -> Place | None:
    """Return the line of a training forward of a module whose DDP wrapper was not called in the same step."""
    for rank in replica.ranks:
        modules = case.records[rank].modules
        training = [forward for forward in moment.of[rank].forwards if forward.grad]
        inside = [forward for forward in training if modules[forward.module].inside is not None]
        wrapped = [forward for forward in training if modules[forward.module].wrapper == "ddp"]
        if inside and not wrapped:
            return inside[-1].line
    return None


def _moved_after_wrapping(case: Comparison, moment: Moment, replica: Replica) -> Call | None:
    """Return the call that gave DDP's parameters another type or device, if none has wrapped them again."""
    rank = replica.ranks[0]
    calls = [call for number, call in case.records[rank].calls("moved", "ddp") if number <= moment.of[rank].number]
    return calls[-1] if calls and calls[-1].call == "moved" and case.is_ddp(replica) else None


def _changed_after_backward(case: Comparison, moment: Moment, different: list[Replica]) -> Broken | None:
    """Report gradients that were equal after the backward pass and were changed by each rank for itself."""
    replica = different[0]
    last: dict[int, Backward] = {
        rank: moment.of[rank].backwards[-1] for rank in replica.ranks if moment.of[rank].backwards
    }
    if set(last) != set(replica.ranks):
        return None
    before = {rank: backward.bits.get(moment.optimizer) for rank, backward in last.items()}
    if any(bits is None or replica.index >= len(bits) for bits in before.values()):
        return None
    own = {rank: bits[replica.index] for rank, bits in before.items() if bits is not None}
    if len(set(own.values())) > 1 or None in own.values():
        return None
    first = replica.ranks[0]
    factors = {rank: _factor(moment.of[rank], moment.of[first], different) for rank in replica.ranks[1:]}
    other = next((rank for rank, factor in factors.items() if factor is None or abs(factor - 1) > _SAME_FACTOR), None)
    factor = factors.get(other) if other is not None else None
    clip = _call_line(moment, list(replica.ranks), "clip")
    outside = _not_reduced(case, moment, replica, before) if clip else None
    if outside is not None:
        return Broken(
            f"since step {moment.step}, the gradient of {case.name(replica.optimizer, outside)} is not reduced: it "
            f"differs between {span([*replica.ranks])}, and so does the norm by which each clips, at {clip}",
            "certain" if replica.known else "likely",
            "put the module that has it into the wrapper too, or reduce its gradient before clipping",
            step=moment.step,
            ranks=replica.ranks,
            line=_made(case, replace(replica, index=outside)) or clip,
            evidence=_values(case, moment, [replace(replica, index=outside), *different[:1]], "gradients"),
        )
    begin, end = last[first].line, moment.of[first].line
    ratio = f"; those of rank {other} are {factor:.6g} times those of rank {first}" if factor is not None else ""
    return Broken(
        f"since step {moment.step}, the gradients of {_names(case, different)} differ between "
        f"{span([*replica.ranks])} when the optimizer uses them, although they were equal after the backward pass at "
        f"{begin}{ratio}: "
        + (
            f"they are clipped at {clip} by a norm of the rank's own" if clip else "each rank scaled or changed its own"
        ),
        "certain" if replica.known else "likely",
        "clip by the norm over all ranks' gradients"
        if clip
        else f"look between {begin} and {end}: use the same scale on all ranks, and let all ranks decide together",
        step=moment.step,
        ranks=tuple(rank for rank in replica.ranks if rank == other) or replica.ranks,
        line=clip or _call_line(moment, [first], "gradient_written") or end,
        evidence=_values(case, moment, different, "gradients"),
    )


def _not_reduced(
    case: Comparison, moment: Moment, replica: Replica, left: dict[int, list[int | None] | None]
) -> int | None:
    """Return a parameter next to the replicas whose gradients differ between ranks after the backward pass."""
    held = {each.index for each in case.replicas if each.optimizer == moment.optimizer}
    table = case.any.tables.get(moment.optimizer)
    for index, parameter in enumerate(table.parameters if table is not None else ()):
        if index in held or parameter.mesh is not None or not parameter.names:
            continue
        bits = {values[index] if values is not None and index < len(values) else None for values in left.values()}
        same = {(tuple(each.names), tuple(each.shape)) for each in _on(case, replica, index)}
        if len(bits) > 1 and None not in bits and len(same) == 1:
            return index
    return None


def _on(case: Comparison, replica: Replica, index: int) -> Iterator[Parameter]:
    """Yield a parameter of an optimizer on each rank of a replica."""
    for rank in replica.ranks:
        parameter = case.parameter(replica.optimizer, index, rank)
        if parameter is not None:
            yield parameter


def _other_order(case: Comparison, moment: Moment, different: list[Replica]) -> Broken | None:
    """Report gradients of which all ranks hold the same, but for other parameters."""
    ranks = different[0].ranks
    bits = {rank: [moment.of[rank].gradient_bits(each.index) for each in different] for rank in ranks}
    held = {rank: sorted(values, key=str) for rank, values in bits.items()}
    if len(different) < 2 or len({str(values) for values in held.values()}) > 1 or None in bits[ranks[0]]:
        return None
    line = _call_line(moment, list(ranks), "all_reduce") or moment.of[ranks[0]].line
    return Broken(
        f"since step {moment.step}, all ranks hold the same gradients, but for other parameters: "
        f"{_names(case, different)} are exchanged, since the ranks reduce them in another order at {line}",
        "certain",
        "reduce in the order of a list, as `model.parameters()` gives it: a set has another order in each process",
        step=moment.step,
        ranks=ranks,
        line=line,
        evidence=_values(case, moment, different, "gradients"),
    )


def _factor(step: Step, base: Step, different: list[Replica]) -> float | None:
    """Return the one factor between two ranks' gradients; None if there is none."""
    ratios = []
    for replica in different:
        one, other = step.gradient(replica.index), base.gradient(replica.index)
        if one is not None and other is not None and one.norm and other.norm:
            ratios.append(one.norm / other.norm)
    if not ratios or max(ratios) - min(ratios) > _SAME_FACTOR * max(ratios):
        return None
    return ratios[0]


# ---- learning rates and clipping -------------------------------------------------------------------------------------


def learning_rates(case: Comparison) -> Broken | None:
    """Find learning rates that differ between replicas."""
    replicas = {replica.optimizer: replica for replica in _replicas(case)}
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
            norms = [call.norm for call in calls if call.norm is not None]
            used = any(call.limit is not None and norm > call.limit for call, norm in zip(calls, norms, strict=False))
            if not used or max(norms) - min(norms) <= 1e-6 * max(norms):
                continue
            values = ", ".join(f"{norm:.6g}" for norm in norms[:8])
            if _end_equal(case, moment):
                return Broken(
                    f"since step {moment.step}, each rank clips its own gradients at {calls[0].line} before they are "
                    f"averaged, by {values}",
                    "likely",
                    "clip once in a step, after the last micro-batch, whose backward pass averages the gradients",
                    step=moment.step,
                    ranks=tuple(moment.of),
                    line=calls[0].line,
                )
            if _has_parts(case, moment) and (
                _reduces_gradients(case, moment) or case.has_messages or case.is_sharded or case.replicas
            ):
                at = (
                    f" at {calls[0].line}" if calls[0].line is not None else ""
                )  # Frog's trainer clips without the user
                return Broken(
                    f"since step {moment.step}, each rank clips by a norm of its own{at}: {values}",
                    "likely",
                    "the norm must be that of the whole gradient: add the squares over the ranks that hold parts of "
                    "it (all_reduce), then take the root; DTensors and FSDP's own clip_grad_norm_ do this",
                    step=moment.step,
                    ranks=tuple(moment.of),
                    line=calls[0].line,
                )
    found = shards_scaled_apart(case) or clipped_before_the_end(case)
    if found is None and not seen:
        raise NotObservable("no call of torch.nn.utils.clip_grad_norm_ was sampled on all ranks")
    return found


def _end_equal(case: Comparison, moment: Moment) -> bool:
    """True if an optimizer holds replicas only, and their gradients are equal when it uses them."""
    replicas = [replica for replica in case.replicas if replica.optimizer == moment.optimizer]
    if not replicas or _has_parts(case, moment) or not all(replica.known for replica in replicas):
        return False
    return not any(_differs(moment, replica, Step.gradient_bits) for replica in replicas)


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
    replicas = _replicas(case)
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


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _moments(case: Comparison) -> Iterator[tuple[Replica, Moment]]:
    """Yield each sampled step with each replica of its optimizer."""
    replicas = _replicas(case)
    for moment in case.all_sampled():
        for replica in replicas:
            if replica.optimizer == moment.optimizer and set(replica.ranks) <= set(moment.of):
                yield replica, moment


def _differs(moment: Moment, replica: Replica, bits_of: Callable[[Step, int], int | None]) -> bool:
    """True if the ranks of a replica took the step and hold different bits."""
    if not set(replica.ranks) <= set(moment.of):
        return False
    return len({bits_of(moment.of[rank], replica.index) for rank in replica.ranks}) > 1


def _bits_before(step: Step, index: int) -> int | None:
    return step.before[index]


def _stay_equal(moment: Moment, replica: Replica) -> bool:
    """True if a step that changes weights leaves them equal: the optimizer has used something else than was recorded.

    A DTensor's gradient may still be a partial sum on each rank; the optimizer adds it up.
    """
    steps = [moment.of[rank] for rank in replica.ranks]
    weights = {step.weight_bits(replica.index) for step in steps}
    return (
        len(weights) == 1 and None not in weights and all(step.before[replica.index] not in weights for step in steps)
    )


def _names(case: Comparison, replicas: list[Replica]) -> str:
    return some_of([case.name(replica.optimizer, replica.index) for replica in replicas], MOST_NAMES)


def _values(case: Comparison, moment: Moment, replicas: list[Replica], what: str) -> tuple[str, ...]:
    """Return a line of evidence for each rank, for the first parameters."""
    found = []
    for replica in replicas[:2]:
        for rank in replica.ranks[:4]:
            step = moment.of[rank]
            shown = step.gradient(replica.index) if what == "gradients" else step.weights[replica.index]
            name, source = case.name(replica.optimizer, replica.index), case.records[rank].path
            found.append(f"rank {rank}   step {moment.step}: {what} of {name}: {_norm(shown)}  [{source}]")
    return tuple(found)


def _norm(shown: Fingerprint | None) -> str:
    if shown is None:
        return "none"
    return "not finite" if shown.norm is None else f"norm {shown.norm:.9g}"


def _line(moment: Moment, ranks: list[int]) -> str:
    step = moment.of.get(ranks[0] if ranks else 0) or next(iter(moment.of.values()))
    return f"step {moment.step} at {step.line}"


def _call_line(moment: Moment, ranks: list[int], name: str) -> Place | None:
    calls = (call for rank in ranks for call in moment.of[rank].calls if call.call == name)
    return next((call.line for call in calls), None)


def _made(case: Comparison, replica: Replica) -> Place | None:
    parameter = case.parameter(replica.optimizer, replica.index)
    if parameter is None:
        return None
    records = [case.records[rank] for rank in replica.ranks]
    return seeded_apart(records, parameter.names[0] if parameter.names else "") or parameter.made


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

"""The rule on the gradients of replicas: equal when the optimizer uses them, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from frog.core.units import span
from frog.observe.check.comparison import Comparison, Moment, Replica
from frog.observe.check.rank_records import Call, Parameter, Place, Step
from frog.observe.check.replica_evidence import differs, line_of_call, made_at, names_of, replicas_of, values_of
from frog.observe.check.rule import Broken, Sure

_SAME_FACTOR = 1e-5
"""Largest relative difference between the ratios of several norms that counts as one factor; float32 keeps 6e-8."""


def gradients_when_used(case: Comparison) -> Broken | None:
    """Find gradients that differ between replicas when the optimizer uses them."""
    moment, different = _first_different(case)
    if moment is None:
        return None
    broken = _explained(_Difference(case, moment, different))
    if broken.sure == "certain" and _averages_later(case, different):
        return replace(
            broken, sure="possible", advice=f"{broken.advice}. Local SGD, which averages weights, may do this"
        )
    return broken


def _averages_later(case: Comparison, different: list[Replica]) -> bool:
    """True if the program itself also reduces replicas in DDP: as many elements as they have, between two steps."""
    if not all(case.is_ddp(replica) for replica in different):
        return False
    elements: dict[int, int] = {}
    for number, call in case.any.calls("all_reduce"):
        elements[number] = elements.get(number, 0) + call.elements
    parameters = (case.parameter(replica.optimizer, replica.index) for replica in different)
    return max(elements.values(), default=0) >= sum(each.numel for each in parameters if each is not None)


@dataclass(frozen=True)
class _Difference:
    """The first step in which gradients of replicas differ."""

    case: Comparison
    moment: Moment
    replicas: list[Replica]
    """Those whose gradients differ."""

    @property
    def first(self) -> Replica:
        return self.replicas[0]

    @property
    def step(self) -> Step:
        """The step on the first rank."""
        return self.moment.of[self.first.ranks[0]]

    @property
    def backward_line(self) -> Place | None:
        return self.step.backwards[-1].line if self.step.backwards else None

    def broken(self, why: str, sure: Sure, advice: str, line: Place | None) -> Broken:
        who = span([*self.first.ranks])
        what = (
            f"the gradients of {names_of(self.case, self.replicas)} differ between {who} when the optimizer uses them"
        )
        return Broken(
            f"since step {self.moment.step}, {what}{why}",
            sure,
            advice,
            step=self.moment.step,
            ranks=self.first.ranks,
            line=line,
            evidence=values_of(self.case, self.moment, self.replicas, "gradients"),
        )


def _explained(difference: _Difference) -> Broken:
    """Return the first explanation that the records allow: the most specific ones come first."""
    case, moment, different = difference.case, difference.moment, difference.replicas
    return (
        _not_averaged_by_ddp(difference)
        or _between_parts_of_layers(difference)
        or _changed_after_backward(case, moment, different)
        or _other_order(case, moment, different)
        or _frozen_when_wrapped(difference)
        or _ignored_by_fsdp(difference)
        or _not_reduced_with_others(difference)
        or _nothing_averaged(difference)
    )


def _not_averaged_by_ddp(difference: _Difference) -> Broken | None:
    """Report what keeps a DDP that the program uses from averaging: a way around it, `no_sync`, or lost hooks."""
    case, moment, replica = difference.case, difference.moment, difference.first
    past = _past_the_wrapper(case, moment, replica)
    if past is not None:
        return difference.broken(
            f": the forward at {past} calls the module inside DDP, so DDP does not average them",
            "certain",
            "call the wrapper, `model(x)`, not `model.module(x)`",
            past,
        )
    steps = [moment.of[rank] for rank in replica.ranks]
    forwards = [forward for step in steps for forward in step.forwards if forward.grad]
    if replica.known and forwards and all(step.forwards[-1].sync is False for step in steps if step.forwards):
        line = difference.step.forwards[-1].line
        return difference.broken(
            f": the last forward before the step, at {line}, is inside DDP's `no_sync`",
            "certain",
            "leave `no_sync` for the last micro-batch of each step: its forward and its backward",
            line,
        )
    moved = _moved_after_wrapping(case, moment, replica)
    if moved is not None:
        return difference.broken(
            f": the model was converted or moved at {moved.line} after DDP had wrapped it: that removes "
            "the hooks with which DDP averages",
            "certain",
            "move and convert the model first, and wrap it then: to(), half(), float(), cuda() and cpu() undo it",
            moved.line,
        )
    return None


def _not_reduced_with_others(difference: _Difference) -> Broken | None:
    """Report parameters whose gradients are not reduced, while those of others of the optimizer are equal."""
    case, replica = difference.case, difference.first
    held = [each for each in case.replicas if each.optimizer == difference.moment.optimizer]
    num_equal = len(held) - len(difference.replicas)
    if num_equal <= 0:
        return None
    parameter = case.parameter(replica.optimizer, replica.index)
    sure: Sure = "certain" if parameter is not None and parameter.ddp is not None else "possible"
    is_weak = parameter is None or parameter.constant or case.has_exchanges
    if sure == "possible" and any(each.known for each in held) and not is_weak:
        sure = "likely"
    return difference.broken(
        f", while those of {num_equal} other parameters are equal: these are not reduced",
        sure,
        "put the module into the wrapper too, or reduce its gradients; parameters that are added or replaced "
        "after DDP was created are not in it. Experts and norms of which each rank has its own may differ",
        (parameter.made if parameter is not None else None) or difference.backward_line,
    )


def _frozen_when_wrapped(difference: _Difference) -> Broken | None:
    """Report layers that were frozen when DDP was made, which has no hooks for them, and that are trained now."""
    case = difference.case
    parameters = [case.parameter(each.optimizer, each.index, each.ranks[0]) for each in difference.replicas]
    lines = [each.frozen_in_ddp if each is not None else None for each in parameters]
    if None in lines:
        return None
    return difference.broken(
        f": they were frozen when DDP was made at {lines[0]}, so DDP does not average them",
        "certain",
        "make DDP again after `requires_grad_(True)`, or wrap the model before layers are frozen and freeze them by a "
        "learning rate of 0",
        lines[0],
    )


def _ignored_by_fsdp(difference: _Difference) -> Broken | None:
    """Report parameters of a model that FSDP2 shards, and that are on each rank whole."""
    if difference.first.known or not difference.case.is_sharded:
        return None
    return difference.broken(
        ": FSDP does not average the gradients of parameters that it ignores, or that were added to a module after it",
        "likely",
        "average them before `optimizer.step()`, or let FSDP have them",
        difference.backward_line or difference.step.line,
    )


def _nothing_averaged(difference: _Difference) -> Broken:
    case, known = difference.case, difference.first.known
    exchanges = case.reduces or known
    sure: Sure = "possible" if _may_differ_on_purpose(case, difference.moment) else "likely"
    return difference.broken(
        ": nothing averaged them"
        + ("" if exchanges else ", and the ranks exchange nothing at all: each trains a model of its own"),
        "certain" if known else sure,
        "wrap the model in DistributedDataParallel, or average each gradient over the ranks before `optimizer.step()`",
        difference.backward_line or difference.step.line,
    )


def _between_parts_of_layers(difference: _Difference) -> Broken | None:
    """Explain why ranks that have parts of the same layers compute other gradients: other samples, or other noise."""
    case, moment, replica = difference.case, difference.moment, difference.first
    first, *others = replica.ranks
    sure: Sure = "certain" if replica.known else "likely"
    if case.is_sharded:
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
                return difference.broken(
                    f": {who} train on other samples, at {mine.line}",
                    sure,
                    "give all ranks that share a model the same batch: divide the samples by the rank in the data "
                    "group, not by the rank in the world. With parts of a sequence, add these gradients",
                    mine.line,
                )
            if mine.rows == theirs.rows and mine.draws and theirs.draws and mine.random != theirs.random:
                return difference.broken(
                    f": {who} draw other random numbers for the same samples in the forward at {mine.line}, such as "
                    "those of dropout",
                    sure,
                    "seed ranks that share a model alike: with the rank in the data group, not in the world; only "
                    "inside of divided layers may masks differ",
                    mine.line,
                )
    return None


def _may_differ_on_purpose(case: Comparison, moment: Moment) -> bool:
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
    replicas = replicas_of(case)
    for moment in case.all_sampled():
        own = [each for each in replicas if each.optimizer == moment.optimizer and set(each.ranks) <= set(moment.of)]
        different = [
            each for each in own if differs(moment, each, Step.gradient_bits) and not _stay_equal(moment, each)
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
    left = _left_by_the_backward(moment, replica)
    if left is None:
        return None
    first = replica.ranks[0]
    factors = {rank: _factor(moment.of[rank], moment.of[first], different) for rank in replica.ranks[1:]}
    other = next((rank for rank, factor in factors.items() if factor is None or abs(factor - 1) > _SAME_FACTOR), None)
    factor = factors.get(other) if other is not None else None
    clip = line_of_call(moment, list(replica.ranks), "clip")
    outside = _not_reduced(case, moment, replica, left) if clip else None
    if outside is not None:
        return _clipped_with_another(case, moment, different, replace(replica, index=outside), clip)
    begin, end = moment.of[first].backwards[-1].line, moment.of[first].line
    ratio = f"; those of rank {other} are {factor:.6g} times those of rank {first}" if factor is not None else ""
    how = "each rank scaled or changed its own"
    advice = f"look between {begin} and {end}: use the same scale on all ranks, and let all ranks decide together"
    if clip:
        how = f"they are clipped at {clip} by a norm of the rank's own"
        advice = "clip by the norm over all ranks' gradients"
    return Broken(
        f"since step {moment.step}, the gradients of {names_of(case, different)} differ between "
        f"{span([*replica.ranks])} when the optimizer uses them, although they were equal after the backward pass at "
        f"{begin}{ratio}: " + how,
        "certain" if replica.known else "likely",
        advice,
        step=moment.step,
        ranks=tuple(rank for rank in replica.ranks if rank == other) or replica.ranks,
        line=clip or line_of_call(moment, [first], "gradient_written") or end,
        evidence=values_of(case, moment, different, "gradients"),
    )


def _clipped_with_another(
    case: Comparison, moment: Moment, different: list[Replica], outside: Replica, clip: Place | None
) -> Broken:
    """Report a parameter whose gradient is not reduced, so that it changes the norm by which each rank clips."""
    return Broken(
        f"since step {moment.step}, the gradient of {case.name(outside.optimizer, outside.index)} is not reduced: it "
        f"differs between {span([*outside.ranks])}, and so does the norm by which each clips, at {clip}",
        "certain" if outside.known else "likely",
        "put the module that has it into the wrapper too, or reduce its gradient before clipping",
        step=moment.step,
        ranks=outside.ranks,
        line=made_at(case, outside) or clip,
        evidence=values_of(case, moment, [outside, *different[:1]], "gradients"),
    )


def _left_by_the_backward(moment: Moment, replica: Replica) -> dict[int, list[int | None]] | None:
    """Return the bits of all gradients as each rank's last backward pass left them, if it left the replica's equal."""
    left: dict[int, list[int | None]] = {}
    for rank in replica.ranks:
        backwards = moment.of[rank].backwards
        bits = backwards[-1].bits.get(moment.optimizer) if backwards else None
        if bits is None or replica.index >= len(bits):
            return None
        left[rank] = bits
    own = {bits[replica.index] for bits in left.values()}
    return left if len(own) == 1 and None not in own else None


def _not_reduced(case: Comparison, moment: Moment, replica: Replica, left: dict[int, list[int | None]]) -> int | None:
    """Return a parameter next to the replicas whose gradients differ between ranks after the backward pass."""
    held = {each.index for each in case.replicas if each.optimizer == moment.optimizer}
    table = case.any.tables.get(moment.optimizer)
    for index, parameter in enumerate(table.parameters if table is not None else ()):
        if index in held or parameter.mesh is not None or not parameter.names:
            continue
        bits = {values[index] if index < len(values) else None for values in left.values()}
        same = {(tuple(each.names), tuple(each.shape)) for each in _on_each_rank(case, replica, index)}
        if len(bits) > 1 and None not in bits and len(same) == 1:
            return index
    return None


def _on_each_rank(case: Comparison, replica: Replica, index: int) -> Iterator[Parameter]:
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
    line = line_of_call(moment, list(ranks), "all_reduce") or moment.of[ranks[0]].line
    return Broken(
        f"since step {moment.step}, all ranks hold the same gradients, but for other parameters: "
        f"{names_of(case, different)} are exchanged, since the ranks reduce them in another order at {line}",
        "certain",
        "reduce in the order of a list, as `model.parameters()` gives it: a set has another order in each process",
        step=moment.step,
        ranks=ranks,
        line=line,
        evidence=values_of(case, moment, different, "gradients"),
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


def _stay_equal(moment: Moment, replica: Replica) -> bool:
    """True if a step that changes weights leaves them equal: the optimizer has used something else than was recorded.

    A DTensor's gradient may still be a partial sum on each rank; the optimizer adds it up.
    """
    steps = [moment.of[rank] for rank in replica.ranks]
    weights = {step.weight_bits(replica.index) for step in steps}
    return (
        len(weights) == 1 and None not in weights and all(step.before[replica.index] not in weights for step in steps)
    )

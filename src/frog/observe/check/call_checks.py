"""Rules on losses and collectives: what the program itself asks torch for."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile

from frog.observe.check.comparison import Comparison, Moment, NotObservable
from frog.observe.check.gradient_makeup import LOSSES, is_plain_mean
from frog.observe.check.makeup_checks import micro_batches_added, sample_rows, sum_not_divided
from frog.observe.check.rank_records import MEAN, Backward, Call, Node, Place, RankRecord, Step
from frog.observe.check.reduction_checks import half_sums
from frog.observe.check.rule import Broken, Rule

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor")
_LEAST_USUAL = 2
"""Steps with as many micro-batches that make their number the usual one."""
_LEAST_ELEMENTS = 64
"""Fewer elements may be a metric, which nothing uses before it is there."""
_EQUAL_AFTER = ("all_reduce", "broadcast", "all_gather_into_tensor")
"""Collectives after which all ranks hold the same tensor."""


def losses_of_micro_batches(case: Comparison) -> Broken | None:
    """Find micro-batches whose mean losses are added without a division by their number."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        for step in record.steps:
            if not _adds_micro_batches(case, record, step):
                continue
            seen = True
            broken = _divided_twice(record, step) or _never_divided(record, step)
            if broken is not None:
                return broken
    broken = _micro_batches_of_two_epochs(case) or micro_batches_added(case)
    if broken is None and not seen:
        raise NotObservable("no step had several micro-batches")
    return broken


def _micro_batches_of_two_epochs(case: Comparison) -> Broken | None:
    """Find a step that adds micro-batches which were left when an epoch ended to those of the next one's first step."""
    for record in case.records.values():
        counts = Counter(len(step.backwards) for step in record.steps if step.backwards)
        usual = counts.most_common(1)[0][0] if counts else 0
        if usual < 2 or counts[usual] < _LEAST_USUAL:
            continue
        iterations: dict[int, set[tuple[int, int]]] = {}
        for batch in record.batches:
            iterations.setdefault(batch.step, set()).add((batch.loader, batch.iteration))
        for place, step in enumerate(record.steps):
            loaders = [loader for loader, _ in iterations.get(place, ())]
            if len(step.backwards) <= usual or len(set(loaders)) == len(loaders):
                continue
            fixed = all(float(usual) in _divisors(backward) for backward in step.backwards)
            return Broken(
                f"step {step.step} adds {len(step.backwards)} micro-batches, others {usual}: the remaining ones at "
                "the end of the epoch before are added to those of the next one"
                + (f", and each is divided by {usual}" if fixed else ""),
                "likely" if fixed else "possible",
                "step after the last micro-batch of an epoch too, with their real number, or leave them out: "
                "`optimizer.zero_grad()` at the beginning of each epoch",
                step=step.step,
                ranks=(record.rank,),
                line=_line_of_loss(step),
            )
    return None


def _adds_micro_batches(case: Comparison, record: RankRecord, step: Step) -> bool:
    """True if a step adds the gradients of several backward passes of one line, each of samples of its own."""
    if step.gradients is None or len(step.backwards) < 2:
        return False
    lines = {backward.line for backward in step.backwards}
    if len(lines) > 1 or step.stale or not all(backward.adds for backward in step.backwards[1:]):
        return False
    rows = sample_rows(case, record, step)
    # several losses of the same samples are meant to be added
    return len(rows) < 2 or any(each != rows[0] for each in rows)


def _divided_twice(record: RankRecord, step: Step) -> Broken | None:
    count = len(step.backwards)
    if not all(_divisors(backward).count(float(count)) > 1 for backward in step.backwards):
        return None
    return Broken(
        f"step {step.step} divides the loss of each of {count} micro-batches by {count} twice",
        "likely" if count > 2 else "possible",
        "divide once: `accelerator.backward`, Lightning and other trainers do it themselves",
        step=step.step,
        ranks=(record.rank,),
        line=_line_of_loss(step),
    )


def _never_divided(record: RankRecord, step: Step) -> Broken | None:
    if not all(is_plain_mean(backward) for backward in step.backwards):
        return None
    count = len(step.backwards)
    bits = step.backwards[-1].bits.get(step.optimizer)
    used = [None if each is None else each.bits for each in step.gradients or []]
    clips = [call for call in step.calls if call.call == "clip"]
    if bits is None or (bits != used and not (len(clips) == 1 and clips[0].untouched)):
        return None  # they may have been divided after the backward
    return Broken(
        f"step {step.step} adds the gradients of {count} micro-batches at {step.backwards[0].line}; each "
        f"loss is a mean over its micro-batch and none is divided by {count}: the gradients are {count} "
        "times those of the whole batch",
        "likely",
        f"`(loss / {count}).backward()`, or divide the gradients before the step. With Adam the step is "
        "about the same, but clipping and weight decay are not",
        step=step.step,
        ranks=(record.rank,),
        line=_line_of_loss(step),
    )


def _line_of_loss(step: Step) -> Place | None:
    """Return the line of a step's backward, or of its last forward if a library calls both backward and step."""
    line = step.backwards[0].line
    forwards = [forward.line for forward in step.forwards if forward.grad and forward.line is not None]
    return forwards[-1] if line == step.line and forwards else line


def _divisors(backward: Backward) -> list[float]:
    """Return the numbers by which a loss is divided after its mean was taken."""
    after_mean = takewhile(lambda node: not node.name.startswith(("MeanBackward", *LOSSES)), backward.graph)
    return [node.factor for node in after_mean if node.name.startswith("DivBackward") and node.factor is not None]


def means_over_targets(case: Comparison) -> Broken | None:
    """Find means over unequal numbers of targets that are averaged as if they were equal."""
    case.require_steps()
    seen = False
    for moment in case.all_sampled():
        passes = [backward for step in moment.of.values() for backward in step.backwards]
        known = _own_counts(passes) or [each for each in map(_weight_of_targets, passes) if each is not None]
        seen = seen or sum(is_mean or weight < 1 for is_mean, _, weight in known) > 1
        if len(known) < len(passes) or len(passes) < 2 or len({is_mean for is_mean, _, _ in known}) > 1:
            continue
        counts, weights = [number for _, number, _ in known], [weight for _, _, weight in known]
        if max(counts) > min(counts) and max(weights) > min(weights) * (1 + 1e-4):
            line = next(iter(moment.of.values())).backwards[0].line
            return Broken(
                f"step {moment.step} averages means over unequal numbers of targets, {min(counts):g} to "
                f"{max(counts):g}, at {line}: targets in short batches count more",
                "possible",
                "sum the losses, reduce the number of targets over ranks and micro-batches, and divide by the total",
                step=moment.step,
                ranks=tuple(moment.of),
                line=line,
            )
    if not seen:
        raise NotObservable("no cross entropy with a mean over several ranks or micro-batches was seen")
    return None


def _cross_entropy(backward: Backward) -> tuple[Node, float] | None:
    """Return a loss's cross entropy and the factor by which the loss scales it; None if there is none, or no factor."""
    scale = 1.0
    for node in backward.graph:
        if node.name.startswith("NllLoss"):
            return node, scale
        if not node.factor:
            return None
        scale = scale * node.factor if node.name.startswith("Mul") else scale / node.factor
    return None


def _own_counts(passes: list[Backward]) -> list[tuple[bool, float, float]]:
    """Return what `_weight_of_targets` does for losses that are sums, each divided by a count of its own.

    Such a count, as of a mask's ones, is the one whole number that is not the same in all losses. Empty for others.
    """
    paths = [list(takewhile(lambda node: not node.name.startswith("SumBackward"), each.graph)) for each in passes]
    known = all(len(path) < len(each.graph) for path, each in zip(paths, passes, strict=True))
    if not known or len({tuple(node.name for node in path) for path in paths}) != 1:
        return []
    steps = list(zip(*paths, strict=True))
    differ = [nodes for nodes in steps if len({node.factor for node in nodes}) > 1]
    if len(differ) != 1 or not all(
        node.name.startswith("DivBackward") and node.factor and node.factor > 0 and node.factor == int(node.factor)
        for node in differ[0]
    ):
        return []
    return [(True, node.factor, 1 / node.factor) for node in differ[0] if node.factor]


def _weight_of_targets(backward: Backward) -> tuple[bool, float, float] | None:
    """Return whether a cross entropy averages, over how many targets it does or adds, and how much each counts."""
    scaled = _cross_entropy(backward)
    loss = scaled[0] if scaled else next((node for node in backward.graph if node.name.startswith("NllLoss")), None)
    is_mean = loss is not None and loss.reduction == MEAN
    if loss is None or not loss.weight or not (scaled or is_mean):
        return None
    scale = scaled[1] if scaled else 1.0
    return is_mean, loss.weight, abs(scale) / (loss.weight if is_mean else 1.0)


def same_collectives(case: Comparison) -> Broken | None:
    """Find collectives of the program that differ in type, reduction or result between ranks."""
    broken = _not_waited_for(case)
    if broken is not None:
        return broken
    case.require_ranks()
    calls = {
        rank: [(number, call) for number, call in record.calls(*_COLLECTIVES) if call.ranks is None]
        for rank, record in case.records.items()
    }
    if not all(calls.values()):
        raise NotObservable("the program called no collective over all ranks in a recorded step")
    for several in zip(*calls.values(), strict=False):
        number, first = several[0]
        for rank, (_, call) in zip(calls, several, strict=True):
            if call.call != first.call or call.elements != first.elements:
                raise NotObservable(f"the ranks call different collectives over all ranks from step {number} on")
            where = f"{first.call} at {first.line} (rank {case.ranks[0]}) and {call.line} (rank {rank})"
            if call.dtype != first.dtype:
                return _mismatch(case, number, call, rank, f"{where}: {first.dtype} meets {call.dtype}")
            if call.op != first.op:
                one, other = first.op or "the default (SUM)", call.op or "the default (SUM)"
                return _mismatch(case, number, call, rank, f"{where}: {one} meets {other}")
            if call.call in _EQUAL_AFTER and None not in (call.bits, first.bits) and call.bits != first.bits:
                return _mismatch(case, number, call, rank, f"{where}: the results differ between the ranks")
    return None


def _not_waited_for(case: Comparison) -> Broken | None:
    """Find asynchronous reductions of many elements for which the program has not waited when the optimizer steps."""
    for rank, record in case.records.items():
        unfinished = [
            (number, call)
            for number, call in record.calls("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
            if call.waited is False and call.elements >= _LEAST_ELEMENTS and number <= len(record.steps)
        ]
        if len(unfinished) > 1:
            number, call = unfinished[0]
            return Broken(
                f"step {number} on rank {rank} does not wait for the {call.call} of {call.elements} elements that "
                f"begins at {call.line}: what uses its tensor may use it half-way, and it may write over it later",
                "likely",
                "call `wait()` on what the collective returns before its tensor is used",
                step=number,
                ranks=(rank,),
                line=call.line,
            )
    return None


def _mismatch(case: Comparison, step: int, call: Call, rank: int, what: str) -> Broken:
    return Broken(
        f"a collective of step {step} is not the same on all ranks: {what}. The backend does not compare them",
        "certain",
        "call the same collective, with the same type and reduction, on all ranks",
        step=step,
        ranks=(rank,),
        line=call.line,
    )


def sums_of_gradients(case: Comparison) -> Broken | None:
    """Find gradients that are a sum over the ranks where each rank's loss is a mean."""
    case.require_ranks()
    case.require_steps()
    seen = False
    for moment in case.all_sampled():
        for rank, step in moment.of.items():
            sums = {
                call.bits: call
                for call in step.calls
                if call.call == "all_reduce" and call.op in (None, "SUM") and call.bits and call.elements > 1
            }
            used = [each.bits for each in step.gradients or [] if each is not None]
            hits = [sums[bits] for bits in used if bits in sums]
            seen = seen or bool(sums)
            if len(hits) < max(1, len(used) // 2) or not step.backwards:
                continue
            own = hits[0].ranks or case.ranks
            if len(own) < 2:
                continue
            passes = [backward for other in own if other in moment.of for backward in moment.of[other].backwards]
            if not all(is_plain_mean(backward) for backward in passes):
                continue  # the ranks of a pipeline have parts of the gradient of one loss
            losses = {tuple(backward.loss for backward in each.backwards) for each in moment.of.values()}
            if len(losses) == 1:
                continue  # ranks that split a layer have parts of the gradient of one loss: their sum is meant
            size = len(own)
            return Broken(
                f"since step {moment.step}, the gradients are the sum over {size} ranks of means, reduced at "
                f"{hits[0].line}: {size} times those of the whole batch",
                "likely",
                f"divide by {size}, or use dist.ReduceOp.AVG where the backend has it",
                step=moment.step,
                ranks=(rank,),
                line=hits[0].line,
            )
    broken = _reduced_twice(case) or _scaled_by_the_ranks(case) or sum_not_divided(case)
    if broken is None and not seen:
        raise NotObservable("the program reduces no gradients of its own")
    return broken


def _reduced_twice(case: Comparison) -> Broken | None:
    """Find a gradient that enters a sum over ranks as the result of the same sum."""
    for moment in case.all_sampled():
        for rank, step in moment.of.items():
            used = {each.bits for each in step.gradients or [] if each is not None and each.norm}
            sums = [call for call in step.calls if call.call == "all_reduce" and call.op in (None, "SUM") and call.bits]
            for number, call in enumerate(sums):
                earlier = [
                    each
                    for each in sums[:number]
                    if each.bits == call.entered and (each.ranks, each.elements) == (call.ranks, call.elements)
                ]
                if earlier and call.bits in used and call.bits != call.entered:
                    size = len(call.ranks or case.ranks)
                    return Broken(
                        f"since step {moment.step}, a gradient of {call.elements} elements is added over {size} ranks "
                        f"twice, at {earlier[-1].line} and at {call.line}: it is {size} times too large",
                        "likely",
                        "reduce each gradient once: in the backward of its layer or after it",
                        step=moment.step,
                        ranks=(rank,),
                        line=call.line,
                    )
    return None


def _scaled_by_the_ranks(case: Comparison) -> Broken | None:
    """Find cross entropies whose weights add up to the number of ranks, or to one part of it, in the mean of all."""
    for moment in case.all_sampled():
        if len(moment.of) < len(case.ranks):
            continue
        weights = [_share(step) for step in moment.of.values()]
        losses = {tuple(backward.loss for backward in step.backwards) for step in moment.of.values()}
        call = _added_at(moment)
        ranks = _averaged_by_ddp(case, moment)
        if any(weight is None for weight in weights) or len(losses) == 1 or (call is None and not ranks):
            continue
        size = len(case.ranks)
        total = sum(weight for weight in weights if weight is not None) / (size if ranks else 1)
        factor = next((each for each in (size, 1 / size) if abs(total - each) < 1e-5 * each), None)
        first = next(iter(moment.of.values()))
        if factor is None or len(first.backwards) > 1:
            continue
        times = f"{size} times" if factor > 1 else f"1/{size} of"
        return Broken(
            f"since step {moment.step}, the weights of all targets add up to {total:.4g}, not to 1: the gradients are "
            f"{times} those of the mean over all ranks' targets",
            "likely" if factor > 1 else "possible",
            "account for the number of ranks once: in the loss, or where the gradients are averaged, as DDP does",
            step=moment.step,
            ranks=tuple(moment.of),
            line=first.backwards[0].line if call is None or factor < 1 else call.line,
        )
    return None


def _share(step: Step) -> float | None:
    """Return how much the targets of a step's one cross entropy weigh; None if it is not known."""
    if len(step.backwards) != 1:
        return None
    scaled = _cross_entropy(step.backwards[0])
    if scaled is None:
        return None
    node, scale = scaled
    if not node.weight:
        return None
    return scale if node.reduction == MEAN else scale * node.weight


def _added_at(moment: Moment) -> Call | None:
    """Return a sum over all ranks whose result is a gradient that the optimizer uses, if most gradients are such."""
    step = next(iter(moment.of.values()))
    sums = {call.bits: call for call in step.calls if call.call == "all_reduce" and call.op in (None, "SUM")}
    used = [each.bits for each in step.gradients or [] if each is not None and each.norm]
    hits = [sums[bits] for bits in used if bits in sums and sums[bits].ranks is None]
    return hits[0] if used and len(hits) == len(used) else None


def _averaged_by_ddp(case: Comparison, moment: Moment) -> bool:
    """True if DDP averages all gradients of a step over all ranks, and nothing changes them after it."""
    step, table = next(iter(moment.of.values())), case.any.tables.get(moment.optimizer)
    left = step.backwards[-1].bits.get(moment.optimizer) if step.backwards else None
    used = [None if each is None else each.bits for each in step.gradients or []]
    return table is not None and left == used and all(each.ddp == list(case.ranks) for each in table.parameters)


def words_on_a_rank(case: Comparison) -> Broken | None:
    """Find words that no rank's part of an embedding holds."""
    sums = [
        (number, rank, call) for rank, record in case.records.items() for number, call in record.calls("all_reduce")
    ]
    if not any(call.bits is not None for _, _, call in sums):
        raise NotObservable("no sum over ranks was sampled")
    first = next((each for each in sums if each[2].words), None)
    if first is None:
        return None
    number, rank, call = first
    words = ", ".join(map(str, call.words[:8]))
    return Broken(
        f"in step {number}, the ranks' parts of an embedding add up to zero at {call.line} for the words {words}: no "
        "rank has them",
        "possible",
        "compare the limits of the ranks' parts with the mask: a word belongs to the rank with first <= word < end. "
        "The word that pads may be zero on purpose",
        step=number,
        ranks=(rank,),
        line=call.line,
    )


def unscaled_before_clipping(case: Comparison) -> Broken | None:
    """Find gradients that are clipped while they are multiplied by a GradScaler's scale."""
    case.require_steps()
    seen = False
    for rank, record in case.records.items():
        clipped, divided, at = None, False, 0
        for number, call in record.calls("clip", "unscale", "scaled_step"):
            if number != at:  # a step without a scaler is between them
                clipped, divided, at = None, False, number
            if call.call == "clip":
                clipped = clipped if divided or clipped is not None else call
                continue
            seen = True
            if clipped is not None:
                return Broken(
                    f"gradients are clipped at {clipped.line} before the GradScaler divides them by its scale, at "
                    f"{call.line}: the limit is as many times too small",
                    "likely",
                    "call `scaler.unscale_(optimizer)` before clip_grad_norm_",
                    step=number,
                    ranks=(rank,),
                    line=clipped.line,
                )
            divided = call.call == "unscale"
    past = _steps_past_the_scaler(case)
    if past is None and not seen:
        raise NotObservable("no GradScaler was used")
    return past


def _steps_past_the_scaler(case: Comparison) -> Broken | None:
    """Find steps that use gradients of scaled losses as the backward pass left them, without the GradScaler."""
    for record in case.records.values():
        for step in record.steps:
            scales = {backward.scale for backward in step.backwards}
            used = [None if each is None else each.bits for each in step.gradients or []]
            left = step.backwards[-1].bits.get(step.optimizer) if step.backwards else None
            scale = next(iter(scales)) if len(scales) == 1 else None
            by_scaler = any(call.call in ("unscale", "scaled_step") for call in step.calls)
            if scale in (None, 1.0) or by_scaler or left != used or not any(used):
                continue
            return Broken(
                f"step {step.step} uses gradients that are {scale:g} times too large: the loss was multiplied by a "
                f"GradScaler's scale, and {step.line} steps without the GradScaler, which divides them",
                "likely",
                "call `scaler.step(optimizer)` instead of `optimizer.step()`, once for each step",
                step=step.step,
                ranks=(record.rank,),
                line=step.line,
            )
    return None


RULES = (
    Rule("accumulation", "the losses of micro-batches are divided by their number", losses_of_micro_batches),
    Rule("targets", "means over unequal numbers of targets are weighted", means_over_targets),
    Rule("collectives", "collectives agree in type, reduction and result", same_collectives),
    Rule("sums", "gradients are averaged, not added, over ranks", sums_of_gradients),
    Rule("half-sums", "sums over ranks keep the digits of the gradients", half_sums),
    Rule(
        "unscaled", "gradients are divided by the loss scale before they are clipped or used", unscaled_before_clipping
    ),
    Rule("words", "each word of a split embedding is on one rank", words_on_a_rank),
)

"""Sums over ranks in half precision: which there are, and how many digits of the gradients they lost.

A number of bfloat16 has 8 binary digits, one of float16 has 11, so each rounding may move it by 2^-8 or 2^-11 of
itself. A sum over n ranks rounds n - 1 times. Terms of equal size no longer count when the sum is 2^8 or 2^11 of them.
How many digits were lost follows from dot products of what the backward passes brought and of what the optimizer used
(`gradient_makeup.py`), which are computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from frog.observe.check.comparison import Comparison, Moment, NotObservable
from frog.observe.check.gradient_makeup import brought_by
from frog.observe.check.rank_records import Place, RankRecord
from frog.observe.check.rule import Broken

_HALF_UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""How far a rounding may move a number, as a share of it."""
_FLOAT32 = 2.0**-23
_DEVIATIONS = 10.0
_MANY_RANKS = 8
_ONE_DIGIT, _TWO_DIGITS = 2.0, 4.0
"""Error of a sum, as a multiple of one rounding's, from which on one or two more binary digits are lost."""
_LEAST_PARAMETERS = 4
_LEAST_ELEMENTS = 64
"""Fewer elements may be a metric."""
_SUMS = ("all_reduce", "reduce", "reduce_scatter_tensor")


@dataclass(frozen=True)
class _Reduction:
    """A sum over ranks in half precision."""

    dtype: str
    ranks: tuple[int, ...]
    size: int
    """The number of ranks, if not all of them are known."""
    from_low: bool
    """True if what is added has no more digits than the sum."""
    by: str
    """What reduces."""
    advice: str
    line: Place | None
    step: int = 1


def half_sums(case: Comparison) -> Broken | None:
    """Find gradients that are added over ranks in half precision, where that loses digits of them."""
    case.require_steps()
    case.require_ranks()
    judged = [_judged(case, reduction) for reduction in _reductions(case)]
    breaches = [broken for broken in judged if broken is not None]
    if breaches:
        return next((broken for broken in breaches if broken.sure == "likely"), breaches[0])
    if not (case.reduces or case.is_sharded or any(replica.known for replica in case.replicas)):
        raise NotObservable("no sum of gradients over ranks was seen")
    return None


def _judged(case: Comparison, reduction: _Reduction) -> Broken | None:
    half_unit, size = _HALF_UNITS[reduction.dtype], reduction.size
    every = [_error_of(case, moment, reduction) for moment in case.all_sampled()]
    errors = [error for error in every if error is not None]
    error = median(errors) if errors else None
    times = None if error is None else error / (half_unit / math.sqrt(3))
    if times == 0:
        return None
    is_swamped = size * half_unit >= 1
    is_likely = is_swamped or (size >= _MANY_RANKS and times is not None and times >= _TWO_DIGITS)
    loses = size >= _MANY_RANKS if times is None else times >= _ONE_DIGIT
    is_possible = not reduction.from_low or loses
    if not is_likely and not is_possible:
        return None
    digits = round(-math.log2(half_unit))
    shown = "" if error is None or times is None else f": they are {100 * error:.2g} % off their exact sum"
    roundings = f"{size - 1} times" if size > 2 else "once"
    why = f"{reduction.dtype} has {digits} binary digits, and a sum over {size} ranks rounds {roundings}"
    if is_swamped:
        why += f"; after {round(1 / half_unit)} terms of equal size, further ones do not count"
    measured = f"median of {len(errors)} sampled steps, {times:.2g} times the error of one rounding" if times else ""
    return Broken(
        f"the gradients are added over {size} ranks in {reduction.dtype}, by {reduction.by}{shown}",
        "likely" if is_likely else "possible",
        reduction.advice,
        step=reduction.step,
        ranks=reduction.ranks,
        line=reduction.line,
        evidence=tuple(each for each in (why, measured) if each),
    )


# ---- which sums there are --------------------------------------------------------------------------------------------


def _reductions(case: Comparison) -> Iterator[_Reduction]:
    """Yield the sums in half precision that wrappers, hooks, weights and calls of the program declare, or that show."""
    declared = False
    for record in case.records.values():
        for each in (*_of_wrappers(record), *_of_ddp(record), *_of_calls(case, record)):
            declared = True
            yield each
        if declared:
            return  # other ranks say the same
    yield from _of_digits(case)


def _of_wrappers(record: RankRecord) -> Iterator[_Reduction]:
    advice = {
        "deepspeed": 'set `"communication_data_type": "fp32"` in the configuration',
        "fsdp1": "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
    }
    other = "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) keeps the digits"
    for module in record.modules.values():
        dtype, computed, size = module.reduction or ("", "", 0)
        if dtype not in _HALF_UNITS or size < 2:
            continue
        tables = [
            table for table in record.tables.values() if any(each.module == module.module for each in table.parameters)
        ]
        made = [each.made for table in tables for each in table.parameters if each.made is not None]
        name = {"ddp": "DDP", "fsdp1": "FSDP", "deepspeed": "DeepSpeed"}.get(module.wrapper or "", "FSDP2")
        yield _Reduction(
            dtype,
            (record.rank,),
            size,
            from_low=computed in _HALF_UNITS,
            by=name,
            advice=advice.get(module.wrapper or "", other),
            line=module.made or next(iter(made), None),
        )


def _of_ddp(record: RankRecord) -> Iterator[_Reduction]:
    """Yield what DDP adds: gradients in the type of their weights, or in that of its hook."""
    hooks = [(step, call) for step, call in record.calls("comm_hook")]
    for table in record.tables.values():
        held = [each for each in table.parameters if each.ddp is not None and len(each.ddp) > 1]
        if not held:
            continue
        ranks = tuple(held[0].ddp or ())
        for step, call in hooks:
            dtype = _dtype_of_hook(call.op or "")
            if dtype is not None and any(each.dtype not in _HALF_UNITS for each in held):
                yield _Reduction(
                    dtype,
                    ranks,
                    len(ranks),
                    from_low=False,
                    by=f"the hook of DDP that {call.line} sets" if call.line is not None else "a hook of DDP",
                    advice="leave the hook out, unless the network is what the steps wait for: DDP then adds in the "
                    "type of the weights",
                    line=call.line,
                    step=step,
                )
        low = [each for each in held if each.dtype in _HALF_UNITS]
        if 2 * len(low) > len(held):
            wrappers = [module.made for module in record.modules.values() if module.made is not None]
            yield _Reduction(
                low[0].dtype,
                ranks,
                len(ranks),
                from_low=True,
                by="DDP, since the weights have this type",
                advice="keep the weights in float32 and compute in bfloat16 with autocast",
                line=table.lowered or next(iter(wrappers), None),
            )


def _dtype_of_hook(name: str) -> str | None:
    low = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "FP16": "float16"}
    return next((dtype for word, dtype in low.items() if word in name), None)


def _of_calls(case: Comparison, record: RankRecord) -> Iterator[_Reduction]:
    """Yield what the program itself adds after a backward pass."""
    weights = [each for table in record.tables.values() for each in table.parameters]
    for step, call in record.calls(*_SUMS):
        adds = call.op in (None, "SUM", "AVG") and call.after_backward and call.elements >= _LEAST_ELEMENTS
        if adds and call.dtype in _HALF_UNITS:
            ranks = tuple(call.ranks) if call.ranks is not None else case.ranks
            size = len(ranks) if call.ranks is not None else record.start.world_size
            yield _Reduction(
                call.dtype,
                ranks,
                size,
                from_low=any(each.dtype in _HALF_UNITS for each in weights),
                by=f"{call.call} at {call.line}" if call.line is not None else call.call,
                advice="convert to float32 before the reduction, and back after it",
                line=call.line,
                step=step,
            )
            return


def _of_digits(case: Comparison) -> Iterator[_Reduction]:
    """Yield what nothing declares: DDP leaves gradients in float32 that have only the digits of half precision."""
    for moment in case.all_sampled():
        ranks = {
            replica.ranks for replica in case.replicas if replica.optimizer == moment.optimizer and case.is_ddp(replica)
        }
        kinds = {
            step.backwards[-1].digits.get(moment.optimizer) if step.backwards else None for step in moment.of.values()
        }
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is None or len(ranks) != 1:
            continue
        group, step = ranks.pop(), next(iter(moment.of.values()))
        hook = next((call.line for _, call in case.any.calls("comm_hook") if call.line is not None), None)
        reduction = _Reduction(
            kind,
            group,
            len(group),
            from_low=False,
            by="a hook of DDP" if hook is not None else "DDP",
            advice="reduce in float32: convert what is sent to half precision only if the network is what the steps "
            "wait for",
            line=hook or next((each.line for each in step.forwards if each.grad), None),
            step=moment.step,
        )
        if _error_of(case, moment, reduction):
            yield reduction
            return


# ---- how many digits they lost ---------------------------------------------------------------------------------------


def _error_of(case: Comparison, moment: Moment, reduction: _Reduction) -> float | None:
    """Return how far the gradients of a step are from a multiple of the exact sum, as a share of it.

    0 if float32 would not do better; None if it is not known, or is not an error of rounding alone.
    """
    steps = [moment.of[rank] for rank in reduction.ranks if rank in moment.of]
    if len(steps) != reduction.size or len({len(step.backwards) for step in steps}) != 1:
        return None
    sums: dict[int, list[float]] = {}
    terms: dict[int, float] = {}
    for index in steps[0].parts:
        columns = [
            brought_by([step], moment.optimizer, number, index)
            for step in steps
            for number in range(len(step.backwards))
        ]
        known = [each for each in columns if each]
        if None not in columns and known:
            sums[index] = [math.fsum(each) for each in zip(*known, strict=True)]
            terms[index] = sum(map(_norm, known)) / (_norm(sums[index]) or math.inf)
    sums = {index: total for index, total in sums.items() if terms[index]}
    if len(sums) < _LEAST_PARAMETERS:
        return None
    used = {index: steps[0].parts[index] for index in sums}
    factor = median(_dot(used[index], total) / _dot(total, total) for index, total in sums.items())
    if not factor:
        return None
    shares = [
        _norm([a - factor * b for a, b in zip(used[index], total, strict=True)]) / abs(factor) / _norm(total)
        for index, total in sums.items()
    ]
    error, grown = median(shares), median(terms[index] for index in sums)
    additions = len(steps) * len(steps[0].backwards) + 4
    if error <= _DEVIATIONS * _FLOAT32 * additions * grown:
        return 0.0
    most = 2 * _HALF_UNITS[reduction.dtype] * additions * grown
    return error if error <= most else None


def _dot(one: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _norm(numbers: list[float]) -> float:
    return math.sqrt(_dot(numbers, numbers))

"""Rules on metrics: numbers that ranks reduce for a log or for a decision, and that no gradient depends on."""

from __future__ import annotations

from collections.abc import Iterator

from frog.core.units import some_of
from frog.observe.check.comparison import MOST_NAMES, Comparison, NotObservable
from frog.observe.check.gradient_makeup import is_plain_mean
from frog.observe.check.rank_records import Call, Place, RankRecord
from frog.observe.check.read_sums import read_sum
from frog.observe.check.rule import Broken, Rule

_SUMS = ("all_reduce", "reduce", "summed")


def same_metrics(case: Comparison) -> Broken | None:
    """Find metrics that ranks reduce in another order, so that values of different ones are added."""
    case.require_ranks()
    seen = False
    for number, line, by_rank in _side_by_side(case):
        seen = seen or any(call.named or call.orders for calls in by_rank.values() for call in calls)
        ours, *others = by_rank.items()
        for other in others:
            words = _other_order(ours[1], other[1])
            if words is not None:
                mine, theirs = (some_of(each, MOST_NAMES) for each in words)
                return Broken(
                    f"the ranks reduce metrics in another order at {line}: rank {ours[0]} {mine}, rank {other[0]} "
                    f"{theirs}. Values of different metrics are added",
                    "likely",
                    "reduce in an order that all ranks share: `for name in sorted(metrics)`; a set or a dictionary has "
                    "the order in which a rank filled it",
                    step=number,
                    ranks=(ours[0], other[0]),
                    line=line,
                )
    if not seen:
        raise NotObservable("no reduction of a mapping's few values over all ranks was seen")
    return None


def _side_by_side(case: Comparison) -> Iterator[tuple[int, Place, dict[int, list[Call]]]]:
    """Yield the reductions over all ranks at each line between two steps, if all ranks have called as many."""
    by_rank = {rank: _by_line(record) for rank, record in case.records.items()}
    for key in by_rank[case.ranks[0]]:
        at_line = {rank: by_line.get(key, []) for rank, by_line in by_rank.items()}
        if len({len(calls) for calls in at_line.values()}) == 1:
            yield *key, at_line


def _by_line(record: RankRecord) -> dict[tuple[int, Place], list[Call]]:
    by_line: dict[tuple[int, Place], list[Call]] = {}
    for number, call in record.calls(*_SUMS):
        if call.line is not None and call.ranks is None:
            by_line.setdefault((number, call.line), []).append(call)
    return by_line


def _other_order(ours: list[Call], theirs: list[Call]) -> tuple[list[str], list[str]] | None:
    """Return the names of two ranks' metrics if they are the same ones in another order."""
    variables = {name for call in ours for name in call.named}
    loops = [tuple([call.named.get(name, "") for call in calls] for calls in (ours, theirs)) for name in variables]
    stacks = [
        (mine, yours) for one, other in zip(ours, theirs, strict=True) for mine, yours in _innermost_keys(one, other)
    ]
    for mine, yours in [*loops, *stacks]:
        if mine != yours and sorted(mine) == sorted(yours):
            return list(dict.fromkeys(mine)), list(dict.fromkeys(yours))
    return None


def _innermost_keys(one: Call, other: Call) -> list[tuple[list[str], list[str]]]:
    """Return the keys of the innermost mapping whose values two ranks may have stacked."""
    return [(one.orders[0], other.orders[0])] if one.orders and other.orders else []


def sums_as_means(case: Comparison) -> Broken | None:
    """Find sums over ranks of their means that the program reads without a division."""
    case.require_ranks()
    seen = False
    for number, line, by_rank in _side_by_side(case):
        for calls in zip(*by_rank.values(), strict=True):
            values = [call.value for call in calls]
            is_sum = calls[0].elements <= 1 and calls[0].op in (None, "SUM")
            if not is_sum or any(value is None or value == int(value) for value in values) or len(set(values)) == 1:
                continue  # counts, and the loss that tensor-parallel ranks have in common
            seen = True
            reading = read_sum(line)
            of_loss = all(
                _is_loss(case.records[rank], number, call.value) for rank, call in zip(by_rank, calls, strict=True)
            )
            if reading is None or not (of_loss or reading.is_mean):
                continue
            size = len(case.ranks)
            what = "keeps" if reading.is_kept else "shows"
            if reading.decides:
                what = "decides by"
            return Broken(
                f"{line} adds {'the loss, a mean,' if of_loss else 'a mean'} of each of {size} ranks, and the program "
                f"{what} the sum at {reading.place}. Nothing divides it: it is {size} times the mean, and grows "
                "with the number of ranks",
                "likely" if of_loss and not reading.is_kept else "possible",
                "divide by the number of ranks, or use dist.ReduceOp.AVG; where ranks have unequal numbers of samples, "
                "add the sums and the numbers, and divide them",
                step=number,
                ranks=case.ranks,
                line=line,
            )
    if not seen:
        raise NotObservable("the program adds no number of the ranks' own that is not a count")
    return None


def _is_loss(record: RankRecord, number: int, value: float | None) -> bool:
    """True if a number is the loss of a backward pass of the step before or of this one, and that is a mean."""
    passes = [each for step in record.steps if step.number in (number - 1, number) for each in step.backwards]
    return any(each.loss == value and is_plain_mean(each) for each in passes)


RULES = (
    Rule("metrics", "ranks reduce the same metric at the same time", same_metrics),
    Rule("means", "a sum of the ranks' means is divided before it is read", sums_as_means),
)

"""The rule on tied weights: an embedding and a head that are one stay one, on a rank and at the ends of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import Parameter, RankRecord, Step
from frog.observe.check.rule import Broken


def tied_weights(case: Comparison) -> Broken | None:
    """Find an embedding and an output layer that began equal and no longer are."""
    case.require_steps()
    seen = False
    for record in case.records.values():
        broken = _untied(record)
        if broken is not None:
            return broken
        for optimizer, embedding, head in _equal_at_the_start(record):
            seen = True
            broken = _no_longer_equal(case, record, optimizer, (embedding, head))
            if broken is not None:
                return broken
    for first, last in _ends_of_pipelines(case):
        seen = True
        broken = _no_longer_shared(case, first, last)
        if broken is not None:
            return broken
    if not seen:
        raise NotObservable("no embedding began equal to another layer's separate tensor")
    return None


def _untied(record: RankRecord) -> Broken | None:
    """Find a head that is not tied to the embedding although the model's configuration says so."""
    for module in record.modules.values():
        if module.untied is not None and record.trains(module):
            name, made = module.untied
            return Broken(
                f"{name} is a tensor of its own, although the model's configuration ties it to the embedding "
                "(tie_word_embeddings): a file that is loaded ties them again, and one of both is lost",
                "likely",
                "call `model.tie_weights()` after a head or an embedding was replaced, or set "
                "`config.tie_word_embeddings = False`",
                step=1,
                ranks=(record.rank,),
                line=made,
            )
    return None


def _equal_at_the_start(record: RankRecord) -> Iterator[tuple[int, int, int]]:
    """Yield an optimizer and its places of an embedding and of another layer's tensor that began equal."""
    for optimizer, table in record.tables.items():
        first = next((step for step in record.sampled(optimizer) if step.step == 1), None)
        if first is None:
            continue
        for embedding, head in _alike(table.parameters):
            if first.before[embedding] is not None and first.before[embedding] == first.before[head]:
                yield optimizer, embedding, head


def _no_longer_equal(case: Comparison, record: RankRecord, optimizer: int, pair: tuple[int, int]) -> Broken | None:
    """Report the step from which an embedding and a head of one rank differ."""
    table, steps = record.tables[optimizer], record.sampled(optimizer)
    first_different = next((step for step in steps if len({step.weight_bits(place) for place in pair}) > 1), None)
    if first_different is None:
        return None
    embedding, head = (case.name(optimizer, place, record.rank) for place in pair)
    return Broken(
        f"{embedding} and {head} were equal when training began and differ since step {first_different.step}: "
        "two tensors where one was meant",
        "likely",
        "tie the weights again after wrapping, sharding or loading: `head.weight = embedding.weight`, "
        "and check with `is`",
        step=first_different.step,
        ranks=(record.rank,),
        line=table.parameters[pair[1]].made or table.made,
    )


@dataclass(frozen=True)
class _End:
    """A parameter of one rank."""

    record: RankRecord
    optimizer: int
    index: int
    parameter: Parameter

    @property
    def steps(self) -> list[Step]:
        return self.record.sampled(self.optimizer)

    @property
    def is_embedding(self) -> bool:
        return "Embedding" in self.parameter.owner


def _ends_of_pipelines(case: Comparison) -> list[tuple[_End, _End]]:
    """Return embeddings and other layers that began as equal tensors on ranks which send each other messages."""
    begun: dict[int, list[_End]] = {}
    for record in case.records.values() if case.has_messages else ():
        for optimizer, table in record.tables.items():
            first = next((step for step in record.sampled(optimizer) if step.step == 1), None)
            before = first.before if first is not None else []
            for index, (parameter, bits) in enumerate(zip(table.parameters, before, strict=False)):
                if bits and not parameter.constant:
                    begun.setdefault(bits, []).append(_End(record, optimizer, index, parameter))
    return [
        (one, other)
        for alike in begun.values()
        for one, other in product(alike, alike)
        if one.is_embedding and not other.is_embedding and one.record is not other.record
    ]


def _no_longer_shared(case: Comparison, first: _End, last: _End) -> Broken | None:
    """Report the step from which the two ends of a pipeline have different weights."""
    pairs = zip(first.steps, last.steps, strict=False)
    differing = (step for step, other in pairs if step.weight_bits(first.index) != other.weight_bits(last.index))
    first_different = next(differing, None)
    if first_different is None:
        return None
    names = [case.name(end.optimizer, end.index, end.record.rank) for end in (first, last)]
    ranks = first.record.rank, last.record.rank
    return Broken(
        f"{names[0]} on rank {ranks[0]} and {names[1]} on rank {ranks[1]} were equal when training began and differ "
        f"since step {first_different.step}: the two ends of the pipeline no longer share them",
        "likely",
        "add the gradients of both ends in each step, and only then divide or scatter them over data ranks",
        step=first_different.step,
        ranks=ranks,
        line=last.parameter.made,
    )


def _alike(parameters: list[Parameter]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of an embedding and another layer's parameter of the same shape."""
    for one, embedding in enumerate(parameters):
        if "Embedding" not in embedding.owner or embedding.constant:
            continue
        for other, parameter in enumerate(parameters):
            if other != one and "Embedding" not in parameter.owner and parameter.shape == embedding.shape:
                yield one, other

"""Rules on epochs: each has its own order, together they use every sample, and an evaluation counts it once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.data_checks import LEAST_BATCHES, STREAM, evaluation_loaders, first_step, trains_in
from frog.observe.check.rank_records import Batch, Loader, RankRecord
from frog.observe.check.rule import Broken, Rule

_UNEVEN = 0.1
"""Share of a rank's batches that others do not have: less is the rest of a division."""
_CHOOSING = ("SubsetRandomSampler", "WeightedRandomSampler")
"""Samplers that choose some samples on purpose."""
_NO_CHANCE = 1000


def order_of_epochs(case: Comparison) -> Broken | None:
    """Find a shuffling loader whose second epoch has the order of its first."""
    seen = False
    for record in case.records.values():
        for first, second in _shuffled_epochs(record):
            seen = True
            broken = _same_epoch_number(case, record, first, second) or _same_rows(record, first, second)
            if broken is not None:
                return broken
        for first, second in _stream_epochs(record):
            seen = True
            broken = _same_stream(record, first, second)
            if broken is not None:
                return broken
    if not seen:
        raise NotObservable("no DataLoader that shuffles was iterated twice")
    return None


def _stream_epochs(record: RankRecord) -> Iterator[tuple[Loader, Loader]]:
    """Yield the first two iterations over each stream that depends on an epoch and that trains."""
    for number in dict.fromkeys(loader.loader for loader in record.loaders):
        own = [each for each in record.loaders if each.loader == number and each.sampler == STREAM]
        trained = [each for each in own if trains_in(record, each) and each.epoch is not None]
        if len(trained) > 1:
            yield trained[0], trained[1]


def _same_stream(record: RankRecord, first: Loader, second: Loader) -> Broken | None:
    rows = [[batch.rows for batch in record.batches_of(epoch) if batch.rows] for epoch in (first, second)]
    length = min(map(len, rows))
    if not second.persistent or length < LEAST_BATCHES or rows[0][:length] != rows[1][:length]:
        return None
    is_set = first.epoch != second.epoch
    return Broken(
        f"the first {length} batches of iterations 1 and 2 over the DataLoader at {second.line} hold the same samples "
        f"in the same order, although its data set reads an epoch, {second.epoch} in the second: its workers persist, "
        "and each has a copy of the data set as it was when they began",
        "likely" if is_set else "possible",
        "let the workers end with each epoch (persistent_workers=False), or keep the epoch in shared memory",
        step=first_step(record, second),
        ranks=(record.rank,),
        line=second.line,
    )


def _shuffled_epochs(record: RankRecord) -> Iterator[tuple[Loader, Loader]]:
    """Yield the first two iterations over each DataLoader that shuffles and trains.

    A loop that peeks at a batch, or compares two orders, does not train on it; a list of all batches may.
    """
    trains = any(trains_in(record, loader) for loader in record.loaders)
    is_training = trains_in if trains else _is_listed
    evaluated = evaluation_loaders(record) if trains else set()
    for number in dict.fromkeys(loader.loader for loader in record.loaders):
        iterations = [each for each in record.loaders if each.loader == number and is_training(record, each)]
        if len(iterations) > 1 and iterations[0].shuffle and number not in evaluated:
            yield iterations[0], iterations[1]


def _same_epoch_number(case: Comparison, record: RankRecord, first: Loader, second: Loader) -> Broken | None:
    if not first.distributed or first.epoch != second.epoch:
        return None
    return Broken(
        f"each epoch has the same order: the DistributedSampler's epoch is {first.epoch} in iterations 1 "
        f"and 2 over the DataLoader at {second.line}",
        "certain",
        "call `sampler.set_epoch(epoch)` at the beginning of each epoch",
        step=first_step(record, second),
        ranks=case.ranks,
        line=second.line,
    )


def _same_rows(record: RankRecord, first: Loader, second: Loader) -> Broken | None:
    rows = [[batch.rows for batch in record.batches_of(epoch) if batch.rows] for epoch in (first, second)]
    length = min(map(len, rows))
    if length < LEAST_BATCHES or rows[0][:length] != rows[1][:length]:
        return None
    return Broken(
        f"the first {length} batches of iterations 1 and 2 over the DataLoader at {second.line} hold the "
        "same samples in the same order, although it shuffles: its random numbers begin again in each "
        "epoch",
        "certain",
        "do not set the seed in the loop over epochs; seed the sampler's generator once, or with the epoch",
        step=first_step(record, second),
        ranks=(record.rank,),
        line=second.line,
    )


def _is_listed(record: RankRecord, loader: Loader) -> bool:
    """True if several batches were drawn one after the other, no evaluation used them, and as many forwards trained."""
    batches = record.batches_of(loader)
    if len(batches) < LEAST_BATCHES:
        return False
    begin = batches[-1].step
    later = [each for each in record.batches if each.loader == loader.loader and each.iteration > loader.iteration]
    steps = record.steps[begin : later[0].step if later else None]
    if not steps or steps[0].gradients is None:  # the forwards of other steps are not recorded
        return False
    evaluated = sum(not forward.grad for forward in steps[0].forwards)
    of_others = sum(each.step == begin and each.loader != loader.loader for each in record.batches)
    trained = sum(forward.grad for step in steps for forward in step.forwards)
    return evaluated - of_others < len(batches) <= trained


def samples_left_out(case: Comparison) -> Broken | None:
    """Find samples that no epoch uses: a tail that is always dropped, or what a rank has left when others are done.

    An evaluation, too, that leaves out what does not fill its last batch.
    """
    records, seen = list(case.records.values()), False
    evaluated = {each for record in records for each in evaluation_loaders(record)}
    for number in sorted({each.loader for each in case.any.loaders} - evaluated):
        epochs = [_epochs(record, number) for record in records]
        if not all(epochs):
            continue
        seen = True
        broken = _left_by_longer_ranks(case, epochs) or _in_no_epoch(case, epochs)
        if broken is not None:
            return broken
    for number in sorted(evaluated):
        parts = [each for each in (_epochs(record, number, trains=False) for record in records) if each]
        seen = seen or bool(parts)
        broken = _left_by_an_evaluation(case, [each[0] for each in parts])
        if broken is not None:
            return broken
    if not seen:
        raise NotObservable("no DataLoader of all ranks that trains, and that tells how many batches it has, was read")
    return None


@dataclass(frozen=True)
class _Epoch:
    """An iteration over a DataLoader, and the batches that were drawn in it."""

    loader: Loader
    drawn: list[Batch]
    is_last: bool

    @property
    def is_complete(self) -> bool:
        return len(self.drawn) >= (self.loader.batches or 0)

    @property
    def rows(self) -> list[int]:
        return [row for batch in self.drawn for row in batch.rows or ()]


def _epochs(record: RankRecord, number: int, trains: bool = True) -> list[_Epoch]:
    """Return the iterations over a DataLoader that train; none if the samples of one of them are not known.

    trains: False for those over one that evaluates.
    """
    own = [each for each in record.loaders if each.loader == number]
    loaders = [each for each in own if trains_in(record, each) or (not trains and len(record.batches_of(each)) > 1)]
    epochs = [_Epoch(each, record.batches_of(each), each is loaders[-1]) for each in loaders]
    is_known = all(
        each.loader.batches and each.loader.samples and all(batch.has_all_rows for batch in each.drawn)
        for each in epochs
    )
    return epochs if is_known else []


def _left_by_longer_ranks(case: Comparison, epochs: list[list[_Epoch]]) -> Broken | None:
    """Find a rank that leaves batches in each epoch, since another rank has no more."""
    for rank, ours in zip(case.ranks, epochs, strict=True):
        left = [(each.loader.batches or 0) - len(each.drawn) for each in ours]
        others = [each for each in epochs if each is not ours and len(each) == len(ours)]
        ended = any(all(epoch.is_complete for epoch in each) for each in others)
        if not ended or min(left) < LEAST_BATCHES or len({_source(each.loader) for each in ours}) > 1:
            continue
        of = ours[0].loader.batches or 0
        is_fixed = has_fixed_order(ours[0].loader)
        return Broken(
            f"rank {rank} has {of} batches in the DataLoader at {ours[0].loader.line} and leaves {min(left)} of them "
            "in each epoch, since another rank has no more: "
            + ("the order stays the same, so that their samples are never used" if is_fixed else "they are not used"),
            "likely" if is_fixed and min(left) >= _UNEVEN * of else "possible",
            "give all ranks as many samples: divide the samples, not the files, or use "
            "torch.distributed.algorithms.Join for ranks with fewer",
            step=None,
            ranks=(rank,),
            line=ours[0].loader.made or ours[0].loader.line,
        )
    return None


def _left_by_an_evaluation(case: Comparison, parts: list[_Epoch]) -> Broken | None:
    """Find samples of an evaluation's data set that none of the ranks that evaluate draws."""
    if not parts or not all(each.is_complete for each in parts) or len({_source(each.loader) for each in parts}) > 1:
        return None
    first, used = parts[0].loader, sum(len(each.rows) for each in parts)
    total = first.samples or 0
    if used >= total or first.sampler in _CHOOSING:
        return None
    return Broken(
        f"the evaluation at {first.line} leaves out {total - used} of {total} samples, which fill no batch of all "
        "ranks or belong to ranks that do not evaluate",
        "possible",
        "evaluate all samples: drop_last=False, on each rank that has a part of them",
        ranks=case.ranks,
        line=first.made or first.line,
    )


def _source(loader: Loader) -> tuple[int | None, int | None]:
    return loader.samples, loader.batches


def has_fixed_order(loader: Loader) -> bool:
    """True if the order stays the same. A loader without a batch size has a batch sampler, which may shuffle."""
    in_order = loader.sampler == "SequentialSampler" and loader.size is not None
    return in_order or (loader.distributed and not loader.shuffle)


def _in_no_epoch(case: Comparison, epochs: list[list[_Epoch]]) -> Broken | None:
    """Find samples of a data set that the ranks divide, which none of them draws in any epoch."""
    rounds = [
        of_ranks
        for of_ranks in zip(*epochs, strict=False)
        if all(epoch.is_complete or not epoch.is_last for epoch in of_ranks)
    ]
    first = epochs[0][0].loader
    sources = {_source(epoch.loader) for of_ranks in rounds for epoch in of_ranks}
    if not rounds or first.sampler in _CHOOSING or len(sources) > 1:
        return None
    drawn = [Counter(row for epoch in of_ranks for row in epoch.rows) for of_ranks in rounds]
    total, used = first.samples or 0, sum(drawn[0].values())
    is_fixed = has_fixed_order(first)
    chance = math.comb(total, min(used, total)) ** (len(rounds) - 1)
    if used >= total or any(rows != drawn[0] for rows in drawn) or not (is_fixed or chance >= _NO_CHANCE):
        return None
    return Broken(
        f"{total - used} of the {total} samples of the DataLoader at {first.line} are in "
        + ("no epoch" if len(rounds) > 1 else "no batch, and the order stays the same")
        + f": the ranks draw the same {used}"
        + (" each time" if len(rounds) > 1 else ""),
        "possible",
        "shuffle before the tail is cut off (`shuffle=True` and `set_epoch`), or keep it: drop_last=False. If the "
        "others are held out on purpose, nothing is wrong",
        step=first_step(case.any, epochs[0][1].loader) if len(epochs[0]) > 1 else 1,
        ranks=case.ranks,
        line=first.made or first.line,
    )


def samples_twice(case: Comparison) -> Broken | None:
    """Find an evaluation that counts padded samples twice."""
    evaluations = {rank: evaluation_loaders(record) for rank, record in case.records.items()}
    evaluated = [
        (record, loader)
        for record in case.records.values()
        for loader in record.loaders
        if loader.loader in evaluations[record.rank]
    ]
    if not evaluated:
        raise NotObservable("no DataLoader was used for evaluation only")
    for record, loader in evaluated:
        if loader.distributed and loader.padded:
            return Broken(
                f"the evaluation at {loader.line} counts some samples twice: the DistributedSampler pads "
                f"{loader.samples} samples to a multiple of the ranks",
                "possible",
                "leave out the padding (count each sample's index once), or evaluate a number of samples that the "
                "ranks divide",
                ranks=(record.rank,),
                line=loader.line,
            )
        gathered = [call for _, call in record.calls("gather", "gather_for_metrics")]
        if loader.fills_up and gathered and not any(call.call == "gather_for_metrics" for call in gathered):
            return Broken(
                f"the evaluation at {loader.line} counts some samples twice: accelerate repeats samples until all "
                f"ranks have equal batches, and `gather` at {gathered[-1].line} keeps them",
                "possible",
                "use `accelerator.gather_for_metrics`, which leaves out what was repeated",
                ranks=(record.rank,),
                line=gathered[-1].line,
            )
    return None


RULES = (
    Rule("epochs", "a loader that shuffles has another order in each epoch", order_of_epochs),
    Rule("left-out", "every sample is in some epoch", samples_left_out),
    Rule("twice", "an evaluation counts each sample once", samples_twice),
)

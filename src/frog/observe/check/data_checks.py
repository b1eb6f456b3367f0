"""Rules on samples and random numbers: each rank, each worker and each draw has its own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from frog.core.units import some_of, span
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import Batch, Forward, Loader, Place, RankRecord
from frog.observe.check.rule import Broken, Rule

LEAST_BATCHES = 2
_LEAST_SAMPLES = 8
"""Samples of which all come twice, or are on two ranks, that are no chance."""
_MOST_OF = 0.8
"""Share of the samples that come as often as there are workers: the last ones may come later."""
_LEAST_HELD_OUT = 4
"""Samples that one rank trains on and another holds out, of which none is both on one rank, that are hardly chance."""
STREAM = "_InfiniteConstantSampler"
"""The sampler that torch gives to an IterableDataset."""


def samples_of_ranks(case: Comparison) -> Broken | None:
    """Find data ranks that train on the same samples."""
    case.require_ranks()
    return (
        _split_twice(case)
        or _once_for_each_worker(case)
        or _split_by_each_rank(case)
        or _held_out_by_one_rank(case)
        or _same_samples(case)
    )


def _split_twice(case: Comparison) -> Broken | None:
    """Find a DataLoader whose samples both a DistributedSampler and accelerate split among the ranks."""
    for record in case.records.values():
        again = next((loader for loader in record.loaders if loader.split_again), None)
        if again is not None:
            return Broken(
                f"the samples are split among the ranks twice: a DistributedSampler gives rank {record.rank} its part, "
                "and of that accelerate leaves out the batches of other ranks, so that only 1 of "
                f"{len(case.ranks)} samples is used",
                "likely",
                "give `accelerator.prepare`, or the Trainer, a DataLoader without a DistributedSampler",
                step=1,
                ranks=(record.rank,),
                line=again.made or again.line,
            )
    return None


def _same_samples(case: Comparison) -> Broken | None:
    """Find neighboring ranks that train on the same samples in all batches, or else in the first one."""
    seen, unknown, beginning = False, False, None
    for one, other in pairwise(case.ranks):
        mine, theirs = _training_rows(case.records[one]), _training_rows(case.records[other])
        common = sorted(set(mine) & set(theirs))
        informative = [key for key in common if len(set(mine[key])) > 1 or len(mine[key]) == 1]
        if len(informative) < LEAST_BATCHES:
            continue
        is_data = False if case.share_layers(one, other) else case.in_data_group(one, other)
        seen = seen or is_data is not None
        unknown = unknown or is_data is None
        same = [key for key in informative if Counter(mine[key]) == Counter(theirs[key])]
        first = informative[0]
        others_differ = not any(set(mine[key]) & set(theirs[key]) for key in informative[1:])
        if is_data and same == [first] and len(set(mine[first])) > 1 and others_differ:
            beginning = _same_first_batch(case, one, other)
            continue
        if len(same) < len(informative) or len({tuple(mine[key]) for key in informative}) == 1:
            continue
        replicas = any({one, other} <= set(replica.ranks) for replica in case.replicas)
        if is_data or (is_data is None and replicas and not case.splits_layers):
            return _same_batches(case, one, other, len(same), bool(is_data))
    if beginning is None and not seen:
        raise NotObservable(
            "which ranks must have samples of their own is not known: no DDP or FSDP"
            if unknown
            else "fewer than two batches of tensors were seen on two ranks"
        )
    return beginning


def _same_first_batch(case: Comparison, one: int, other: int) -> Broken:
    return Broken(
        f"the first batch is the same on ranks {one} and {other}, as if they drew samples with one seed; later "
        "ones differ, since a rank alone draws other random numbers in between",
        "possible",
        "seed what draws the samples with the rank too: `torch.manual_seed(seed + rank)`",
        step=1,
        ranks=(one, other),
        line=_data_line(case.records[one]),
    )


def _same_batches(case: Comparison, one: int, other: int, num_batches: int, is_data: bool) -> Broken:
    return Broken(
        f"ranks {one} and {other} train on the same samples, in all {num_batches} batches that were compared",
        "certain" if is_data else "possible",
        "give each rank its own part: a DistributedSampler; for an IterableDataset, skip what other ranks (and "
        "other workers) read, for example `itertools.islice(data, rank, None, world_size)`"
        + ("" if is_data else ". Ranks that share a model by tensor parallelism must have the same samples"),
        step=1,
        ranks=(one, other),
        line=_data_line(case.records[one]),
    )


def _once_for_each_worker(case: Comparison) -> Broken | None:
    """Find a stream of which each worker of a DataLoader has all, so that every sample comes once for each."""
    for record in case.records.values():
        for loader in record.loaders:
            counts = Counter(_rows_in(record, loader))
            if loader.workers < 2 or loader.sampler != STREAM or len(counts) < _LEAST_SAMPLES:
                continue
            full = sum(count == loader.workers for count in counts.values())
            if max(counts.values()) == loader.workers and full >= _MOST_OF * len(counts):
                return Broken(
                    f"each of {len(counts)} samples of the DataLoader at {loader.line} comes {loader.workers} times, "
                    f"as often as it has workers: each of them reads the whole stream on rank {record.rank}",
                    "likely",
                    "divide the stream in `__iter__` by torch.utils.data.get_worker_info() too, not by the rank alone",
                    step=1,
                    ranks=(record.rank,),
                    line=loader.made or loader.line,
                )
    return None


def _split_by_each_rank(case: Comparison) -> Broken | None:
    """Find ranks whose DistributedSamplers give some samples to both: they divide data sets that are not the same.

    Samples that are in a data set several times come several times on one rank too; here each is there once.
    """
    for rank, other in pairwise(case.ranks):
        mine, theirs = _first_epoch(case.records[rank]), _first_epoch(case.records[other])
        if mine is None or theirs is None:
            continue
        rows = _rows_in(case.records[rank], mine), _rows_in(case.records[other], theirs)
        common = set(rows[0]) & set(rows[1])
        padded = sum(1 for epoch in (mine, theirs) if epoch.padded) * len(case.ranks)
        if any(len(set(own)) < len(own) for own in rows) or len(common) <= padded + _LEAST_SAMPLES:
            continue
        if set(rows[0]) == set(rows[1]):
            continue  # all of them: the rule on equal samples says more
        return Broken(
            f"ranks {rank} and {other} train on {len(common)} samples in common in one epoch, although a "
            f"DistributedSampler divides them: the ranks divide data sets that are not the same, such as splits that "
            "each has drawn for itself; then one validates on what others train on",
            "likely" if len(common) >= 2 * _LEAST_SAMPLES else "possible",
            "draw the split with the same generator on all ranks: "
            "`random_split(..., generator=torch.Generator().manual_seed(seed))`",
            step=1,
            ranks=(rank, other),
            line=mine.made or mine.line,
        )
    return None


def _rows_in(record: RankRecord, epoch: Loader) -> list[int]:
    """Return the samples of an iteration over a DataLoader."""
    return [row for batch in record.batches_of(epoch) for row in batch.rows or ()]


def _held_out_by_one_rank(case: Comparison) -> Broken | None:
    """Find samples that one rank evaluates on and another trains on, if each rank itself keeps the two apart.

    Where a program evaluates on what it trains on, or has samples several times, a rank meets its own as often.
    """
    for rank, other in pairwise(case.ranks):
        mine, theirs = case.records[rank], case.records[other]
        trained, held_out = zip(_trained_and_held_out(mine), _trained_and_held_out(theirs), strict=True)
        common = (trained[0] & held_out[1]) | (trained[1] & held_out[0])
        are_separate = not any(ours & held for ours, held in zip(trained, held_out, strict=True))
        if not are_separate or len(common) < _LEAST_HELD_OUT or not case.in_data_group(rank, other):
            continue
        train = training_loaders(mine)
        evaluated = next((loader for loader in mine.loaders if loader.loader not in train), None)
        return Broken(
            f"of ranks {rank} and {other}, one evaluates on {len(common)} samples that the other trains on, although "
            "neither evaluates on its own: each has drawn a split for itself, so that what one holds out the model "
            "has seen",
            "likely" if len(common) >= _LEAST_SAMPLES else "possible",
            "draw the split with the same generator on all ranks: "
            "`random_split(..., generator=torch.Generator().manual_seed(seed))`",
            step=1,
            ranks=(rank, other),
            line=(evaluated.made or evaluated.line) if evaluated is not None else None,
        )
    return None


def _trained_and_held_out(record: RankRecord) -> tuple[set[int], set[int]]:
    """Return the samples of the DataLoaders that train, and those that others gave to an evaluation."""
    train = training_loaders(record)
    trained: set[int] = set()
    held_out: set[int] = set()
    for batch in record.batches if train else []:
        if batch.loader in train:
            trained.update(batch.rows or ())
        elif _is_evaluated(record, batch):
            held_out.update(batch.rows or ())
    return trained, held_out


def _is_evaluated(record: RankRecord, batch: Batch) -> bool:
    """True if forwards without gradients follow a batch before the next step; or several batches the last step."""
    if batch.step < len(record.steps):
        return any(not forward.grad for forward in record.steps[batch.step].forwards)
    late = [each for each in record.batches if (each.loader, each.step) == (batch.loader, batch.step)]
    return len(late) > 1 and record.end is not None and not record.end.backwards


def _first_epoch(record: RankRecord) -> Loader | None:
    """Return the first iteration of a DataLoader with a DistributedSampler that trains."""
    loaders = (each for each in record.loaders if each.distributed and not each.split_again)
    return next((each for each in loaders if trains_in(record, each)), None)


def _training_rows(record: RankRecord) -> dict[tuple[int, int, int], list[int]]:
    """Return the samples of each batch: of DataLoaders if there are any, else of the outermost forwards."""
    evaluated = evaluation_loaders(record)
    loaded = {
        (batch.loader, batch.iteration, batch.batch): batch.rows
        for batch in record.batches
        if batch.rows and batch.loader not in evaluated
    }
    if loaded:
        return loaded
    by_forward: dict[tuple[int, int, int], list[int]] = {}
    for step in record.steps:
        training = [forward for forward in step.forwards if forward.grad and forward.rows]
        for number, forward in enumerate(training):
            by_forward[step.optimizer, step.step, number] = forward.rows or []
    return by_forward


def evaluation_loaders(record: RankRecord) -> set[int]:
    """Return the loaders with several batches in an iteration and never a step between them: they do not train."""
    train = training_loaders(record)
    several = {each.loader for each in record.loaders if len(record.batches_of(each)) > 1}
    return several - train if record.steps else set()


def _data_line(record: RankRecord) -> Place | None:
    lines = [loader.made or loader.line for loader in record.loaders]
    every = [forward for step in record.steps for forward in step.forwards]
    forwards = [forward.line for forward in sorted(every, key=lambda forward: not forward.grad)]
    return next((line for line in [*lines, *forwards] if line is not None), None)


def training_loaders(record: RankRecord) -> set[int]:
    """Return the loaders between whose batches steps are taken."""
    return {each.loader for each in record.loaders if trains_in(record, each)}


def trains_in(record: RankRecord, loader: Loader) -> bool:
    """True if steps were taken between the batches of an iteration."""
    return len({batch.step for batch in record.batches_of(loader)}) >= LEAST_BATCHES


def first_step(record: RankRecord, loader: Loader) -> int | None:
    """Return the step that the first batch of an iteration comes before."""
    return next((batch.step + 1 for batch in record.batches_of(loader)), None)


def seeds_of_workers(case: Comparison) -> Broken | None:
    """Find DataLoader workers that draw the same random numbers on all ranks."""
    copied = next((each for record in case.records.values() for each in record.loaders if _copies(each)), None)
    if copied is not None:
        return Broken(
            f"the {copied.workers} workers of the DataLoader at {copied.line} each begin with a copy of the random "
            f"numbers of the data set's {some_of(copied.generators, 3)}: they draw the same",
            "possible",
            "draw from torch's or the module `random`'s own numbers, which each worker seeds, or make the generator "
            "in a worker_init_fn",
            step=1,
            ranks=case.ranks,
            line=copied.line,
        )
    case.require_ranks()
    loaders = {
        rank: [each for each in record.loaders if each.seed is not None] for rank, record in case.records.items()
    }
    if not all(loaders.values()):
        raise NotObservable("no DataLoader has workers on all ranks")
    for calls in zip(*loaders.values(), strict=False):
        if len({each.seed for each in calls}) == 1:
            return Broken(
                f"the workers of the DataLoader at {calls[0].line} have the same seed on {span([*case.ranks])}: "
                "random augmentation repeats on all ranks",
                "possible",
                "give the DataLoader a generator that is seeded with the rank",
                ranks=case.ranks,
                line=calls[0].line,
            )
    return None


def _copies(loader: Loader) -> bool:
    return loader.workers > 1 and bool(loader.generators)


def sizes_of_batches(case: Comparison) -> Broken | None:
    """Find batches of which one tensor has all samples and another has one."""
    seen = False
    for record in case.records.values():
        loaders = {(each.loader, each.iteration): each for each in record.loaders}
        for batch in record.batches:
            loader = loaders.get((batch.loader, batch.iteration))
            if loader is None or len(batch.sizes) < 2 or not loader.size or loader.size < 2:
                continue
            seen = True
            if loader.size in batch.sizes and 1 in batch.sizes:
                return Broken(
                    f"the batches of the DataLoader at {loader.line} have tensors for {loader.size} samples and others "
                    "for one: these count for all samples",
                    "possible",
                    "does the collate function or the processor merge the samples? If it is a mask for all samples, "
                    "nothing is wrong",
                    step=batch.step + 1,
                    ranks=(record.rank,),
                    line=loader.line,
                )
    if not seen:
        raise NotObservable("no DataLoader gave batches of several samples and several tensors")
    return None


def random_numbers(case: Comparison) -> Broken | None:
    """Find data ranks whose random states are equal whenever a forward begins, although the program draws numbers."""
    broken = _redrawn(case)
    if broken is not None:
        return broken
    case.require_ranks()
    forwards = {
        rank: [forward for step in record.steps for forward in step.forwards if forward.grad and forward.random]
        for rank, record in case.records.items()
    }
    states = {rank: [forward.random for forward in own] for rank, own in forwards.items()}
    length = min(map(len, states.values()))
    if length < LEAST_BATCHES or any(not case.in_data_group(*pair) for pair in pairwise(case.ranks)):
        raise NotObservable("fewer than two training steps of data ranks were sampled")
    broken = _equal_from_a_step_on(case, forwards, length)
    if broken is not None:
        return broken
    ours = states[case.ranks[0]][:length]
    # a DataLoader draws a seed in each epoch, the same one on all ranks; noise is drawn in each step
    changes = len(set(ours)) - 1
    is_noise = 2 * (changes + 1) > length and changes > len(case.any.loaders)
    draws = any(forward.draws for forward in forwards[case.ranks[0]]) or is_noise
    if draws and len({tuple(own[:length]) for own in states.values()}) == 1:
        first = case.any.steps[0].forwards[0] if case.any.steps and case.any.steps[0].forwards else None
        return Broken(
            f"{span([*case.ranks])} have the same random state before each forward: dropout and noise are equal on "
            "all of them",
            "possible",
            "seed each data rank differently after the model is built, for example `torch.manual_seed(seed + rank)`",
            step=1,
            ranks=case.ranks,
            line=first.line if first is not None else None,
        )
    return None


def _redrawn(case: Comparison) -> Broken | None:
    """Find layers that drop other elements when a backward pass computes them again."""
    calls = ((rank, *each) for rank, record in case.records.items() for each in record.calls("redrawn"))
    rank, number, call = next(calls, (0, 0, None))
    if call is None:
        return None
    return Broken(
        f"in step {number} on rank {rank}, {call.module} is computed again in the backward pass with other random "
        f"numbers than in the forward at {call.line}: it drops other elements, so the gradients are not those of the "
        "loss",
        "likely",
        "let the checkpoint keep the random state: `preserve_rng_state=True`, as it is by default",
        step=number,
        ranks=(rank,),
        line=call.line,
    )


def _equal_from_a_step_on(case: Comparison, forwards: dict[int, list[Forward]], length: int) -> Broken | None:
    """Find ranks whose random states differ first and are equal in all later forwards."""
    states = [tuple(each[place].random for each in forwards.values()) for place in range(length)]
    begin = next((place for place in reversed(range(length)) if len(set(states[place])) > 1), None)
    if begin is None or begin == length - 1:
        return None
    later = [each[begin + 1 :] for each in forwards.values()]
    if not any(each.draws for each in later[0]) or len(set(states[begin + 1 :])) <= LEAST_BATCHES:
        return None
    line = later[0][0].line
    record = case.any
    step = next((each for each in record.steps if any(own is later[0][0] for own in each.forwards)), None)
    number = step.number if step is not None else 0
    restored = next((call.line for when, call in record.calls("random_set") if when == number), None)
    return Broken(
        f"{span([*case.ranks])} have the same random state before each forward since step {number}, and had others "
        "before: dropout and noise are equal on all of them since then",
        "likely" if restored is not None else "possible",
        "restore each rank's own random state: a checkpoint needs that of every rank, not of rank 0",
        step=number,
        ranks=case.ranks,
        line=restored or line,
    )


RULES = (
    Rule("samples", "each data rank trains on samples of its own", samples_of_ranks),
    Rule("batches", "the tensors of a batch have as many samples", sizes_of_batches),
    Rule("worker-seeds", "workers draw different random numbers", seeds_of_workers),
    Rule("randomness", "data ranks draw different random numbers", random_numbers),
)

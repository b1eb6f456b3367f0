"""Rules on a resume: it continues with the order of its epoch, and with the samples that its checkpoint has left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.data_checks import LEAST_BATCHES, first_step, training_loaders
from frog.observe.check.epoch_checks import has_fixed_order
from frog.observe.check.rank_records import Batch, Call, Loader, RankRecord
from frog.observe.check.rule import Broken, Rule, Sure

_PLACES = (
    *("step", "global_step", "current_step", "train_step", "completed_steps", "step_in_epoch", "step_idx"),
    *("iter", "iter_num", "iteration", "global_iter", "iter_idx", "n_iter", "update", "num_updates"),
    *("batch", "batch_idx", "batch_index", "micro_step", "global_batch", "batches_seen"),
)
"""Names under which checkpoints have a number of steps or batches."""
_WITHIN = ("step_in_epoch", "batch", "batch_idx", "batch_index")
"""Those that often count from the beginning of the epoch."""
_EPOCHS = ("epoch", "current_epoch", "epoch_idx", "epochs_run", "epochs_trained", "start_epoch")
_SETTINGS = ("arg", "config", "cfg", "param", "opt", "sched", "model", "scaler")
"""Words in the names of dictionaries whose numbers say nothing about a place."""
_LEAST_SAMPLES = 8
"""Samples that come again, which are not equal by chance if few are equal in a part of an epoch."""
_ADVICE = (
    "leave out the batches that were trained, in the order of their epoch: accelerate's `skip_first_batches`, a "
    "StatefulDataLoader, or `itertools.islice(loader, batches, None)` with the epoch's `set_epoch` or random state"
)


def order_after_a_resume(case: Comparison) -> Broken | None:
    """Find a resume in a later epoch whose sampler begins with the order of epoch 0."""
    seen = False
    for record in case.records.values():
        numbers = [call.numbers for step, call in record.calls("load") if step == 1]
        items = [item for of_load in numbers for item in of_load.items() if "." not in item[0]]
        epochs = [value for key, value in items if "epoch" in key.lower() and value > 0]
        shuffled = [each for each in record.loaders if each.distributed and each.shuffle]
        # `next(iter(loader))` for the size of a batch is followed by an iteration before any step
        began = [first_step(record, each) for each in shuffled]
        looked_at = [mine is not None and mine == then for mine, then in pairwise([*began, None])]
        first = next((each for each, was_left in zip(shuffled, looked_at, strict=True) if not was_left), None)
        if not epochs or first is None:
            continue
        seen = True
        if first.epoch == 0:
            return Broken(
                f"the checkpoint says epoch {epochs[0]}, and the DataLoader at {first.line} begins with the order of "
                "epoch 0: samples of the first epochs come again",
                "likely",
                "call `sampler.set_epoch(epoch)` with the number of the epoch since the start of the training",
                step=1,
                ranks=(record.rank,),
                line=first.line,
            )
    if not seen:
        raise NotObservable("no checkpoint with an epoch above 0 was loaded before a DistributedSampler that shuffles")
    return None


def samples_after_a_resume(case: Comparison) -> Broken | None:
    """Find a resume within an epoch that trains some of its samples again, or leaves some out.

    Two kinds of evidence: the samples of the run that saved the checkpoint, or the numbers in the checkpoint.
    """
    seen = False
    for record in case.records.values():
        begin = _begin(record)
        if begin is None:
            continue
        before = _interrupted(case, record)
        place = _place(record, begin)
        seen = seen or before is not None or place is not None
        broken = _drawn_again(record, begin, before) if before is not None else None
        if broken is None and place is not None and before is None:
            broken = _at_another_place(record, begin, place)
        if broken is not None:
            return broken
    if not seen:
        raise NotObservable(
            "no optimizer was restored before the first step, or its checkpoint tells no place in the one DataLoader "
            "that trains"
        )
    return None


# ---- how the resume begins -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Begin:
    """The iteration over the only DataLoader that trains when a run takes its first step."""

    loader: Loader
    drawn: list[Batch]
    per_step: int
    """Batches of a step."""
    before: int
    """Batches of this iteration that were drawn before the first step."""
    is_left: bool
    """True if another iteration began before this one had come to its end."""

    @property
    def epoch(self) -> int:
        """Return how many batches a whole epoch has."""
        return (self.loader.batches or 0) + (self.loader.skipped or 0)

    @property
    def left_out(self) -> set[int]:
        """Return how many batches may have been left out: some libraries, as accelerate, draw one ahead."""
        return {(self.loader.skipped or 0) + max(0, self.before - self.per_step - ahead) for ahead in (0, 1)}

    @property
    def trained(self) -> list[Batch]:
        """Return the batches of the iteration that were surely trained, and not only drawn in order to pass them."""
        return self.drawn[max(0, self.before - self.per_step) :]


def _begin(record: RankRecord) -> _Begin | None:
    numbers = training_loaders(record)
    if len(numbers) != 1:
        return None
    own = [each for each in record.loaders if each.loader in numbers]
    drawn = [batch for each in own for batch in record.batches_of(each)]
    later = Counter(batch.step for batch in drawn if batch.step)
    first = next((each for each in reversed(own) if first_step(record, each) == 1), None)
    if first is None or not later:
        return None
    begun = own[own.index(first) :]
    left = [len(record.batches_of(each)) < (each.batches or 0) for each in begun[:-1]]
    if any(left[1:]):
        return None  # the program leaves the loader early in each epoch: its epochs are not those of the loader
    ours = record.batches_of(first)
    return _Begin(
        first,
        ours,
        Counter(later.values()).most_common(1)[0][0],
        sum(not batch.step for batch in ours),
        any(left),
    )


# ---- the numbers of the checkpoint -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """Where a checkpoint stands."""

    batches: set[int]
    """How many batches of its epoch it may have seen; 0 if it may be at the end."""
    epochs: set[int]
    """The numbers of its epoch, by the count of steps."""
    named: set[int]
    """The epochs that the checkpoint itself names."""


def _place(record: RankRecord, begin: _Begin) -> _Place | None:
    """Return where the checkpoint that was loaded before the first step stands; None if it does not say."""
    restored = {call.optimizer: call for number, call in record.calls("load_optimizer") if number == 1}
    if not restored or not begin.epoch or begin.loader.skipped is None:
        return None
    updates = {call.updates for call in restored.values()}
    is_scaled = any(True for _ in record.calls("scaled_step", "unscale"))  # the scaler leaves out some updates
    known = updates.pop() if len(updates) == 1 and not is_scaled else None
    numbers = [item for number, call in record.calls("load") if number == 1 for item in _items(call)]
    size = "batch", begin.loader.size  # a setting
    steps = [(key, value) for key, value in numbers if key in _PLACES and value and (key, value) != size]
    sources = [_readings(key, value, known, begin) for key, value in steps]
    if known is not None:
        sources.append(_of_steps(known, begin))
    if not sources:
        return None
    batches = set.intersection(*({at for _, at in each} for each in sources))
    pairs = {pair for each in sources for pair in each if pair[1] in batches}
    named = {value for key, value in numbers if key in _EPOCHS}
    epochs = {epoch for epoch, _ in pairs}
    if named and known is None and all(key in _WITHIN for key, _ in steps):
        epochs = named
    elif named and not any(each - epoch in (0, 1) for each in named for epoch in epochs):
        return None  # its epochs have another length: other ranks, another batch size, a limit of steps
    return _Place(batches, epochs, named) if batches else None


def _items(call: Call) -> Iterator[tuple[str, int]]:
    """Yield the numbers of a checkpoint and their names, without those of settings."""
    for key, value in call.numbers.items():
        inside, _, name = key.rpartition(".")
        if not any(word in inside.lower() for word in _SETTINGS):
            yield name, value


def _readings(key: str, value: int, updates: int | None, begin: _Begin) -> set[tuple[int, int]]:
    """Return what a number may mean: an index or a count, of steps or of batches; as epochs and batches in them."""
    if updates is not None and value in (updates, updates - 1) and key not in _WITHIN:
        return _of_steps(updates, begin)
    counts = {divmod(each, begin.epoch) for each in (value, value + 1)}
    return counts | _of_steps(value, begin) | _of_steps(value + 1, begin)


def _of_steps(steps: int, begin: _Begin) -> set[tuple[int, int]]:
    """Return the epochs and batches of a number of steps; the last step of an epoch may have fewer batches."""
    each, epoch = begin.per_step, begin.epoch
    lengths = {max(1, epoch // each), -(-epoch // each)}
    return {divmod(steps * each, epoch)} | {(steps // length, steps % length * each) for length in lengths}


def _at_another_place(record: RankRecord, begin: _Begin, place: _Place) -> Broken | None:
    """Find a resume that begins elsewhere in the epoch than its checkpoint stands."""
    loader = begin.loader
    if 0 in place.batches or begin.left_out & place.batches:
        return None
    if begin.is_left and begin.epoch - len(begin.drawn) not in place.batches:
        return None
    seen = " or ".join(map(str, sorted(place.batches)))
    where = f"the checkpoint has seen {seen} of {begin.epoch} batches of an epoch, and the DataLoader at {loader.line}"
    sure: Sure = "possible"
    if 0 not in begin.left_out:
        left = max(begin.left_out)
        if min(abs(left - each) for each in place.batches) < LEAST_BATCHES:
            return None
        finding = f"{where} leaves out {left}: samples come twice in this epoch, or not at all"
    elif loader.distributed and loader.shuffle and loader.epoch not in place.epochs:
        finding = (
            f"{where} begins with the first one of the order of epoch {loader.epoch}: the rest of epoch "
            f"{' or '.join(map(str, sorted(place.epochs)))} is left out"
        )
    elif not loader.distributed and (loader.shuffle or loader.size is None):  # no size: a batch sampler
        finding = f"{where} begins with the first one, of this order or another: samples of the epoch come again"
    else:
        finding = f"{where} begins with the first one of the same order: their samples come again"
        sure = "likely" if place.named & place.epochs or (loader.shuffle and not place.named) else "possible"
    return Broken(finding, sure, _ADVICE, step=1, ranks=(record.rank,), line=loader.line)


# ---- the samples of the run that saved it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Interrupted:
    """The iteration of an earlier run in which it saved the checkpoint."""

    loader: Loader
    trained: list[Batch]
    is_within: bool
    """True if that run shows that it would have continued: by further batches, or by whole epochs before."""


def _interrupted(case: Comparison, record: RankRecord) -> _Interrupted | None:
    """Return what the earlier run of this rank had trained in the epoch of the checkpoint, if that was within it."""
    earlier = case.earlier.get(record.rank)
    begin = _begin(earlier) if earlier is not None else None
    steps = _steps_at_save(case, record)
    if earlier is None or begin is None or not steps:
        return None
    own = [each for each in earlier.loaders if each.loader == begin.loader.loader]
    under_way = [each for each in own if any(batch.step < steps for batch in earlier.batches_of(each))]
    last = under_way[-1]
    drawn = [batch for batch in earlier.batches_of(last) if batch.step < steps]
    ahead = begin.before > begin.per_step  # drawn, but not trained: by accelerate, or to pass it
    if last.batches is not None and len(drawn) >= last.batches:
        return None
    more = len(earlier.batches_of(last)) > len(drawn) + ahead
    return _Interrupted(last, drawn[: len(drawn) - ahead], more or len(under_way) > 1)


def _steps_at_save(case: Comparison, record: RankRecord) -> int | None:
    """Return how many steps the earlier run had taken when it saved what this one has loaded before its first step.

    A save after which a run was killed is not recorded: the numbers tell, or an orderly end, that the file is the same.
    """
    loads = [call for number, call in record.calls("load") if number == 1]
    of_path, of_numbers = [], set()
    for rank in case.earlier.values():
        for number, save in rank.calls("save"):
            same = [load for load in loads if save.numbers == load.numbers and (save.numbers or rank.end is not None)]
            of_path += [number - 1 for load in same if save.path is not None and save.path == load.path]
            of_numbers |= {number - 1 for load in same if save.numbers and save.keys == load.keys}
    if of_path:
        return max(of_path)
    return of_numbers.pop() if len(of_numbers) == 1 else None


def _drawn_again(record: RankRecord, begin: _Begin, before: _Interrupted) -> Broken | None:
    """Find samples of the interrupted epoch that the resume trains again."""
    ours, theirs = _rows(begin.trained), _rows(before.trained)
    once = {row for row, times in ours.items() if times == 1} & {row for row, times in theirs.items() if times == 1}
    if not once or (begin.is_left and begin.epoch - len(begin.drawn) != len(before.trained)):
        return None
    loader = begin.loader
    in_order = has_fixed_order(loader) or (loader.distributed and loader.epoch == before.loader.epoch)
    # a data set may have some samples twice: then they are also twice in one part of a random order
    twice = sum(times - 1 for rows in (ours, theirs) for times in rows.values())
    if len(before.trained) in begin.left_out if in_order else len(once) <= 2 * twice:
        return None
    is_same = loader.samples == before.loader.samples
    if not is_same and len(once) < _LEAST_SAMPLES:  # the rest of the data set may have some of these samples twice
        return None
    of_another_epoch = loader.distributed and loader.epoch != before.loader.epoch
    is_proved = before.is_within and is_same and (of_another_epoch or len(once) >= _LEAST_SAMPLES)
    sure: Sure = "certain" if is_proved else "likely"
    of = f"{len(once)} of the {sum(theirs.values())} samples of the epoch that rank {record.rank} had trained when the "
    of += f"checkpoint was saved come again in the DataLoader at {loader.line}"
    if loader.skipped is None or before.loader.skipped is None:
        first = [batch.rows for batch in before.trained[:LEAST_BATCHES]]
        if first != [batch.rows for batch in begin.trained[:LEAST_BATCHES]]:
            return None
        finding, sure = f"{of}, which begins with the same batches as before", "likely"
    elif of_another_epoch:
        finding = f"{of}: it has the order of epoch {loader.epoch}, not the rest of epoch {before.loader.epoch}"
    else:
        finding = of
    return Broken(finding, sure, _ADVICE, step=1, ranks=(record.rank,), line=loader.line)


def _rows(batches: list[Batch]) -> Counter[int]:
    known = all(batch.has_all_rows for batch in batches)
    return Counter(row for batch in batches for row in batch.rows or ()) if known else Counter()


RULES = (
    Rule("resume-order", "a resume continues with the order of its epoch", order_after_a_resume),
    Rule("resume-samples", "a resume continues with the samples that its epoch has left", samples_after_a_resume),
)

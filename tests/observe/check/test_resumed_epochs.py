"""Rules on resumes: what a checkpoint and the run that saved it say of the samples with which the next run begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from check_records import step, write
from observe.check.test_rules_on_records import SHUFFLES, Lines, W, at, called, check, end, loaded
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

from frog.cli import main
from frog.observe.check.answers import RULES
from frog.observe.check.comparison import Comparison, NotObservable
from frog.observe.check.rank_records import read_records
from frog.observe.check.rule import Broken
from frog.observe.hook.frog_observer.checks import watched_functions, watched_states

NO_EPOCH = "no checkpoint with an epoch above 0 was loaded before a DistributedSampler that shuffles"


@pytest.mark.parametrize(
    ("numbers", "loader", "expected"),
    [
        ({"Epoch": 3}, {**SHUFFLES, "epoch": 0},
         ("likely", 1, (0,), 4, "the checkpoint says epoch 3, and the DataLoader at train.py:4")),
        ({"epoch": 1}, {**SHUFFLES, "epoch": 0}, ("likely", 1, (0,), 4)),
        ({"epoch": 3}, {**SHUFFLES, "epoch": 3}, None),
        ({"epoch": 0}, {**SHUFFLES, "epoch": 0}, NO_EPOCH),
        ({"step": 3}, {**SHUFFLES, "epoch": 0}, NO_EPOCH),
        ({"epoch": 3}, {"shuffle": True, "epoch": 0}, NO_EPOCH),
        ({"epoch": 3}, {"distributed": True, "epoch": 0}, NO_EPOCH),
    ],
)  # fmt: skip
def test_resume_continues_with_the_order_of_its_epoch(tmp_path: Path, numbers: Any, loader: Any, expected: Any) -> None:
    own = step(1, calls=[called("load", numbers=numbers)])
    check(tmp_path, "resume-order", [[W, *loaded(**loader), own]], expected)
    check(tmp_path, "resume-order", [[W, *loaded(**loader), step(1), {**own, "step": 2, "number": 2}]], NO_EPOCH)


def test_iteration_without_a_step_is_not_the_order_of_a_resume(tmp_path: Path) -> None:
    """As `next(iter(loader))` for the size of a batch, before `set_epoch`."""
    own = step(1, calls=[called("load", numbers={"epoch": 2})])
    looked, trained = loaded([1], **SHUFFLES, epoch=0), loaded([2], [3], iteration=1, **SHUFFLES, epoch=2)
    check(tmp_path, "resume-order", [[W, *looked, *trained, own]], None)
    forgotten = loaded([2], [3], iteration=1, **SHUFFLES, epoch=0)
    check(tmp_path, "resume-order", [[W, *looked, *forgotten, own]], ("likely", 1, (0,), 4))


# ---- samples ---------------------------------------------------------------------------------------------------------

RULE = next(rule for rule in RULES if rule.name == "resume-samples")
UNKNOWN = (
    "no optimizer was restored before the first step, or its checkpoint tells no place in the one DataLoader "
    "that trains"
)
EPOCH = [[10 * number, 10 * number + 1, 10 * number + 2] for number in range(1, 9)]
"""The samples of 8 batches."""
NEXT = [EPOCH[place] for place in (4, 0, 6, 2, 7, 1, 5, 3)]
IN_ORDER: dict[str, Any] = {"sampler": "SequentialSampler", "size": 3}
EACH_EPOCH: dict[str, Any] = {**SHUFFLES, "size": 3, "epoch": 1}
RANDOM: dict[str, Any] = {"sampler": "RandomSampler", "shuffle": True, "size": 3}
AT_3 = {"epoch": 1, "batch_idx": 3}


def resumed(
    numbers: dict[str, int],
    *epochs: list[list[int]],
    every: int = 1,
    passed: int = 0,
    updates: int | None = None,
    calls: Lines | tuple[()] = (),
    **loader: Any,
) -> Lines:
    """Return a run that loads a checkpoint and trains on some epochs.

    every: batches of a step. passed: batches that are drawn before the first step and not trained.
    """
    lines: Lines = []
    whole, drawn = {"samples": 24, "batches": 8, "skipped": 0, **loader}, 0
    for iteration, rows in enumerate(epochs):
        own = loaded(*rows, iteration=iteration, **whole)
        for line in own[1:]:
            line["step"] = max(0, drawn - passed) // every
            drawn += 1
        lines += own
    taken = lines[-1]["step"] + 1
    restores = [
        called("load", numbers=numbers, path="/last.pt"),
        called("load_optimizer", optimizer=0, updates=updates),
    ]
    first = step(1, calls=[*restores, *calls])
    return [W, *lines, first, *(step(number) for number in range(2, taken + 1)), end(taken)]


BEGINS = "begins with the first one"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # by the numbers of the checkpoint alone
        (resumed(AT_3, EPOCH, **EACH_EPOCH), ("likely", "3 or 4 of 8 batches", f"{BEGINS} of the same order")),
        (resumed({"train.global_step": 11, "epoch": 1}, EPOCH, updates=11, **EACH_EPOCH), ("likely", "3 of 8 batches")),
        (resumed({"epoch": 0, "global_step": 3}, EPOCH, **IN_ORDER), ("likely", f"{BEGINS} of the same order")),
        (resumed({"step": 11}, EPOCH, **EACH_EPOCH), ("likely", "3 or 4 of 8", "same order")),
        (resumed({"step": 11}, EPOCH, **IN_ORDER), ("possible", f"{BEGINS} of the same order")),
        (resumed({"step": 11}, EPOCH, **RANDOM), ("possible", f"{BEGINS}, of this order or another")),
        (resumed({}, EPOCH, updates=11, **IN_ORDER, shuffle=False), ("possible", "3 of 8 batches")),
        (resumed({}, EPOCH, updates=11, sampler="SequentialSampler"), ("possible", "of this order or another")),
        (resumed({"epoch": 1, "step": 11}, EPOCH, **{**EACH_EPOCH, "epoch": 2}),
         ("possible", f"{BEGINS} of the order of epoch 2", "the rest of epoch 1 is left out")),
        (resumed({"step": 5}, EPOCH, every=2, updates=5, passed=2, **{**EACH_EPOCH, "batches": 16}),
         ("possible", "10 of 16 batches", "leaves out 2")),
        (resumed(AT_3, EPOCH[:5], NEXT, **EACH_EPOCH), ("likely", "3 or 4 of 8")),  # as Lightning counts on
        (resumed(AT_3, EPOCH, passed=1, **EACH_EPOCH), ("likely", f"{BEGINS} of the same order")),  # one ahead
        # what is right, or may be
        (resumed(AT_3, EPOCH[3:], batches=5, skipped=3, **EACH_EPOCH), None),
        (resumed(AT_3, EPOCH, passed=3, **EACH_EPOCH), None),
        (resumed(AT_3, EPOCH, passed=4, **EACH_EPOCH), None),
        (resumed({"step": 11}, EPOCH, updates=11, passed=3, **EACH_EPOCH), None),
        (resumed({"step": 11}, NEXT, EPOCH, updates=11, passed=11, **EACH_EPOCH), None),  # draws all epochs again
        (resumed(AT_3, EPOCH[:6], NEXT, **EACH_EPOCH), None),  # leaves the loader after as many as it likes
        (resumed({"step": 7}, EPOCH, passed=5, **EACH_EPOCH), None),
        (resumed({"step": 11}, EPOCH + NEXT, every=2, passed=6, updates=11, **{**EACH_EPOCH, "batches": 16}), None),
        (resumed({"step": 16, "epoch": 2}, EPOCH, updates=16, **{**EACH_EPOCH, "epoch": 2}), None),  # an epoch's end
        (resumed({"step": 7}, EPOCH, **EACH_EPOCH), None),  # the index of the last batch
        (resumed({"step": 5}, EPOCH[:7], every=3, batches=7, **EACH_EPOCH), None),  # 2 or 3 steps in an epoch
        (resumed({"step": 11, "epoch": 5}, EPOCH, updates=11, **EACH_EPOCH), UNKNOWN),  # epochs of another length
        (resumed(AT_3, EPOCH[:4], NEXT[:4], EPOCH[:4], **EACH_EPOCH), UNKNOWN),  # a limit of steps in each epoch
        (resumed(AT_3, EPOCH, **{**EACH_EPOCH, "skipped": None}), UNKNOWN),  # a sampler with a place of its own
        (resumed({"args.step": 11, "batch": 3, "step": 0}, EPOCH, **IN_ORDER), UNKNOWN),  # settings
        (resumed({"step": 11, "iter": 5}, EPOCH, **IN_ORDER), UNKNOWN),  # numbers that no place explains
        (resumed({}, EPOCH, updates=15, calls=[called("scaled_step")], **IN_ORDER), UNKNOWN),  # skipped updates
    ],
)  # fmt: skip
def test_resume_continues_where_its_checkpoint_stands(tmp_path: Path, lines: Lines, expected: Any) -> None:
    """`expected`: None, why it was not checked, or how sure and words of the finding."""
    check(
        tmp_path, RULE.name, [lines], (expected[0], 1, (0,), 4, *expected[1:]) if type(expected) is tuple else expected
    )
    without = [{**each, "calls": each["calls"][:1]} if each.get("calls") else each for each in lines]
    check(tmp_path, RULE.name, [without], UNKNOWN)  # no optimizer restored: another training may begin


def interrupted(
    *epochs: list[list[int]], after: int, path: str | None = "/last.pt", numbers: Any = AT_3, **loader: Any
) -> Lines:
    """Return a run that saves its checkpoint after some steps, and takes one more where its batches reach further."""
    lines = resumed({}, *epochs, **loader)
    saves = called("save", path=path, numbers=numbers)
    for line in lines:
        if line["kind"] == "step":
            line["calls"] = [saves] if line["number"] == after + 1 else []
        elif line["kind"] == "end" and line["steps"] == after:
            line["calls"] = [saves]
    return lines


def said(folder: Path, earlier: Lines, later: Lines) -> Broken | str | None:
    for name, lines in (("one", earlier), ("two", later)):
        write(folder / name, 0, lines)
    try:
        found: Broken | None = RULE.look(Comparison(read_records(folder / "two"), read_records(folder / "one")))
    except NotObservable as error:
        return str(error)
    return found


REST: dict[str, Any] = {**IN_ORDER, "samples": 15, "batches": 5}
"""As of `Subset(dataset, range(9, 24))`."""
COPIES = [*EPOCH[:4], *EPOCH[:4]]
ALL_AGAIN = "9 of the 9 samples of the epoch that rank 0 had trained when the checkpoint was saved come again"
FIRST = interrupted(NEXT, EPOCH[:3], after=11, **RANDOM)
WITHOUT = interrupted(NEXT, EPOCH[:4], after=11, numbers={}, **RANDOM)
KILLED = [line for line in WITHOUT if line["kind"] != "end"]


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        (FIRST, resumed(AT_3, EPOCH, **RANDOM), ("certain", ALL_AGAIN)),
        (FIRST, resumed(AT_3, NEXT, passed=3, **RANDOM), ("likely", "6 of the 9 samples")),  # another order
        (interrupted(EPOCH[:5], after=3, **RANDOM), resumed(AT_3, EPOCH, **RANDOM), ("certain", ALL_AGAIN)),
        (interrupted(EPOCH[:3], after=3, **RANDOM), resumed(AT_3, EPOCH, **RANDOM), ("likely", ALL_AGAIN)),
        (interrupted(NEXT, EPOCH[:3], after=11, **EACH_EPOCH), resumed(AT_3, NEXT, **{**EACH_EPOCH, "epoch": 2}),
         ("certain", "it has the order of epoch 2, not the rest of epoch 1")),
        (interrupted(NEXT, EPOCH[:3], after=11, **EACH_EPOCH),
         resumed(AT_3, NEXT, passed=3, **{**EACH_EPOCH, "epoch": 2}), ("certain", "6 of the 9 samples")),
        (interrupted(NEXT, EPOCH[:3], after=11, path=None, **RANDOM), resumed(AT_3, EPOCH, **RANDOM),
         ("certain", ALL_AGAIN)),  # a library wrote the file: its numbers tell that it is the same
        (interrupted(EPOCH[:3], after=3, skipped=None), resumed(AT_3, EPOCH, skipped=None),
         ("likely", "begins with the same batches as before")),
        (FIRST, resumed(AT_3, EPOCH, passed=3, **RANDOM), None),
        (FIRST, resumed(AT_3, EPOCH[3:], **{**EACH_EPOCH, "skipped": 3, "batches": 5}), None),
        (interrupted(EPOCH[:3], after=3, skipped=None), resumed(AT_3, NEXT, skipped=None), None),  # a stream of its own
        (interrupted(EPOCH[:4], after=1, skipped=None), resumed(AT_3, EPOCH, skipped=None), None),  # one batch
        (interrupted(NEXT, EPOCH, after=16, numbers={}, **RANDOM), resumed({}, EPOCH, **RANDOM), UNKNOWN),  # at its end
        (interrupted(EPOCH[:3], after=3, path="/other.pt", numbers={}), resumed({}, EPOCH, **RANDOM), UNKNOWN),
        (FIRST, resumed({"batch_idx": 3, "epoch": 2}, EPOCH, **RANDOM, updates=16), UNKNOWN),  # saved again
        # samples that the data set has twice
        (interrupted(COPIES, after=4, **IN_ORDER), resumed(AT_3, COPIES[4:], **{**IN_ORDER, "skipped": 4}), None),
        (interrupted([[1, 1, 2], [3, 3, 4], [5, 6, 7], [8, 9, 0]], after=3, **RANDOM),
         resumed(AT_3, [[8, 9, 0], [7, 2, 4], [10, 11, 12]], **RANDOM), None),
        (interrupted(EPOCH[:5], after=3, **IN_ORDER), resumed(AT_3, [[10, 41, 42], *EPOCH[4:]], **REST), None),
        (interrupted(EPOCH[:5], after=3, **IN_ORDER), resumed(AT_3, EPOCH[:5], **REST), ("likely", ALL_AGAIN)),
        (interrupted(EPOCH[:5], after=3, **IN_ORDER), resumed(AT_3, EPOCH, **IN_ORDER), ("certain", ALL_AGAIN)),
        (KILLED, resumed({}, EPOCH, **RANDOM), UNKNOWN),
        (WITHOUT, resumed({}, EPOCH, **RANDOM), ("certain", ALL_AGAIN)),
    ],
)  # fmt: skip
def test_samples_of_the_interrupted_run_do_not_come_again(
    tmp_path: Path, earlier: Lines, later: Lines, expected: Any
) -> None:
    found = said(tmp_path, earlier, later)
    if not isinstance(expected, tuple):
        assert (found.finding if isinstance(found, Broken) else found) == expected
        return
    assert isinstance(found, Broken), found
    assert (found.sure, found.step, found.ranks, found.line) == (expected[0], 1, (0,), tuple(at(4)))
    assert expected[1] in found.finding, found.finding


def test_earlier_start_of_a_run_is_compared_without_being_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `frog run --check --restarts 1`; `--after` names another run."""
    run, one = tmp_path / "run", tmp_path / "one"
    write(run, 0, resumed(AT_3, EPOCH, **RANDOM))
    assert main(["check", "--run", str(run)]) == 0
    write(one, 0, FIRST)
    assert main(["check", "--run", str(run), "--after", str(one)]) == 1
    assert f"Certain: {ALL_AGAIN}" in " ".join(capsys.readouterr().out.split())
    (run / "observed" / "attempt_0").rename(run / "observed" / "attempt_1")
    (one / "observed" / "attempt_0").rename(run / "observed" / "attempt_0")
    assert main(["check", "--run", str(run)]) == 1
    assert f"Certain: {ALL_AGAIN}" in " ".join(capsys.readouterr().out.split())


class Own(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3, 8))


DATA = TensorDataset(torch.arange(8))


@pytest.mark.parametrize(
    ("loader", "skipped"),
    [
        (DataLoader(DATA), 0),
        (DataLoader(DATA, shuffle=True), 0),
        (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 2, False)), 0),
        (DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True)), None),
        (DataLoader(DATA, sampler=Own()), None),
        (DataLoader(DATA, batch_size=None), None),
        (type("StatefulDataLoader", (DataLoader,), {"__module__": "torchdata"})(DATA), None),
    ],
)
def test_loader_with_a_place_of_its_own_is_known(loader: Any, skipped: int | None) -> None:
    """test_silent_bugs.py has one that accelerate's skip_first_batches made."""
    assert watched_functions._skipped(loader) == skipped


def test_numbers_of_a_checkpoint_are_read_one_dictionary_deep() -> None:
    held = {"step": 3, "loss": 1.0, "is_best": True, "trainer": {"epoch": 2, "more": {"step": 4}}, "model": {"a": DATA}}
    assert watched_states._numbers_of(held) == {"step": 3, "trainer.epoch": 2}
    assert watched_states._numbers_of([3]) == {}

"""Findings from recorded numbers: the first NaN, and samples that were read twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from core.runs.test_observed_files import STATUS, write

from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import History, read_history
from frog.core.runs.write import EventWriter
from frog.observe.diagnose.find import diagnose_path
from frog.observe.diagnose.program.program_diagnosis import diagnose_folder
from frog.observe.diagnose.recorded import (
    first_nan,
    norms_that_differ,
    rates_that_differ,
    recorded_findings,
    same_order,
    shared_samples,
)

NAN = float("nan")


def recorded(
    folder: Path, losses: Sequence[Sequence[float]], samples: Sequence[Sequence[Sequence[int]]] | None = None
) -> History:
    """Write the events that ranks with these losses and samples record, and read them."""
    for rank, own in enumerate(losses):
        writer = EventWriter(RunFolder(folder).rank_events(rank))
        at = {"unix_ns": 1, "mono_ns": 1, "pid": 1, "host": "a", "device": "cpu", "threads": 1, "local_rank": rank}
        mesh = {"mesh": {"dp": len(losses)}, "place": {"dp": rank}, "passed_over": [], "node_rank": 0}
        writer.emit("start", step=0, rank=rank, world_size=len(losses), **at, **mesh)
        for step, loss in enumerate(own, start=1):
            writer.emit("step", **step_fields(step, loss, samples[rank][step - 1] if samples else []))
        writer.close()
    return read_history(RunFolder(folder))


def step_fields(step: int, loss: float, samples: Sequence[int]) -> dict[str, Any]:
    names = ("loss_mean", "grad_norm_local", "grad_norm", "learning_rate", "tokens_per_s", "mfu", "loss_scale")
    known = {"step": step, "loss": loss if loss == loss else None, "sample_ids": list(samples), "end_ns": step}
    return {**dict.fromkeys(names), **known, "tokens": 0, "memory_bytes": 0, "skipped": False}


def test_first_rank_with_nan_is_named(tmp_path: Path) -> None:
    found = first_nan(recorded(tmp_path, [[3, 2, 1, NAN], [3, 2, NAN, NAN], [3, 2, 1, NAN]]))
    assert found is not None
    assert (found.fault, found.rank, found.step) == ("nan", 1, 3)
    assert found.finding == (
        "the loss of rank 1 is not finite from step 3 on; the other ranks' was finite in that step"
    )


def test_nan_on_all_ranks_at_once_names_no_rank(tmp_path: Path) -> None:
    found = first_nan(recorded(tmp_path, [[3, NAN], [3, NAN]]))
    assert found is not None
    assert (found.rank, found.step) == (None, 2)
    assert found.finding == "the loss of ranks 0 and 1 is not finite from step 2 on"


def test_nan_from_the_first_step_on_one_rank_is_named(tmp_path: Path) -> None:
    found = first_nan(recorded(tmp_path, [[3, 2], [NAN, NAN]]))
    assert found is not None
    assert (found.rank, found.step) == (1, 1)


@pytest.mark.parametrize("losses", [[[3, NAN, 2], [3, 2, 1]], [[NAN, NAN], [NAN, NAN]], [[], []]])
def test_single_or_unrecorded_numbers_are_no_nan(tmp_path: Path, losses: list[list[float]]) -> None:
    assert first_nan(recorded(tmp_path, losses)) is None


def with_numbers(folder: Path, name: str, rows: Sequence[Sequence[float]]) -> History:
    """Write a number of each rank (a row) in each step."""
    for rank, own in enumerate(rows):
        writer = EventWriter(RunFolder(folder).rank_events(rank))
        at = {"unix_ns": 1, "mono_ns": 1, "pid": 1, "host": "a", "device": "cpu", "threads": 1, "local_rank": rank}
        mesh = {"mesh": {"dp": len(rows)}, "place": {"dp": rank}, "passed_over": [], "node_rank": 0}
        writer.emit("start", step=0, rank=rank, world_size=len(rows), **at, **mesh)
        for step, value in enumerate(own, start=1):
            writer.emit("step", **{**step_fields(step, 1.0, []), name: value})
        writer.close()
    return read_history(RunFolder(folder))


def test_first_step_with_other_learning_rates_is_named(tmp_path: Path) -> None:
    found = rates_that_differ(with_numbers(tmp_path, "learning_rate", [[0.1, 0.1, 0.05], [0.1, 0.1, 0.1]]))
    assert found is not None
    assert (found.fault, found.step, found.certain) == ("learning-rates", 3, False)
    assert found.finding == "the learning rates of the ranks differ from step 3 on: 0.05 to 0.1"
    assert len(found.evidence) == 2


@pytest.mark.parametrize(
    ("norms", "says"),
    [
        ([[1, 2, 3], [2, 4, 6]], "from step 1 on: in each step, that of rank 1 is 2 times that of rank 0"),
        ([[1, 2, 3, 4], [1, 2, 3, 5]], "from step 4 on, after 3 steps with equal ones: 4 to 5"),
        ([[1, 2, 3], [4, 8, 12], [2, 4, 6]], "from step 1 on: 1 to 4"),
    ],
)
def test_norms_that_differ_by_a_factor_or_since_a_step(tmp_path: Path, norms: Any, says: str) -> None:
    found = norms_that_differ(with_numbers(tmp_path, "grad_norm", norms))
    assert found is not None
    assert found.finding == f"the gradient norms of the ranks differ {says}"
    assert (found.fault, found.certain) == ("gradients", False)


@pytest.mark.parametrize(
    "norms",
    [
        [[1, 2, 3, 4]],
        [[1, 2, 3, 4], [1, 2, 3, 4.0003]],
        [[1, 2, 3, 4], [3, 2.5, 1, 4]],  # each rank's own norm
        [[1, 2], [2, 4]],
        [[1, 2, 3], [1, 2, 3.5]],
        [[1, 2, 3], [5, 1, 4], [2, 4, 6]],
        [[0, 0, 0], [1, 2, 3]],
        [[], []],
    ],
)
def test_equal_norms_and_those_of_own_gradients_are_not_named(tmp_path: Path, norms: Any) -> None:
    assert norms_that_differ(with_numbers(tmp_path, "grad_norm", norms)) is None
    assert rates_that_differ(with_numbers(tmp_path / "rates", "learning_rate", [[0.1, NAN], [0.1, 0.2]])) is None


def epochs(num_ranks: int, num_epochs: int, *, set_epoch: bool, shuffle: bool = True, split: bool = True) -> Any:
    """Return the samples of each rank and step as DistributedSampler gives them: 32 samples, batches of 4."""
    ranks: list[list[list[int]]] = [[] for _ in range(num_ranks)]
    for epoch in range(num_epochs):
        order = list(range(32))
        if shuffle:
            random.Random(epoch if set_epoch else 0).shuffle(order)
        for rank, own in enumerate(ranks):
            part = order[rank::num_ranks] if split else order
            own += [part[at : at + 4] for at in range(0, len(part), 4)]
    return ranks


def with_samples(folder: Path, samples: Any) -> History:
    return recorded(folder, [[1.0] * len(own) for own in samples], samples)


def test_same_shuffled_order_in_each_epoch_is_found(tmp_path: Path) -> None:
    found = same_order(with_samples(tmp_path, epochs(2, 3, set_epoch=False)))
    assert found is not None
    assert found.finding == (
        "ranks 0 and 1 read the samples of each epoch in the same shuffled order: the order never changes"
    )
    assert "set_epoch" in found.advice


@pytest.mark.parametrize(
    "samples",
    [
        epochs(2, 3, set_epoch=True),
        epochs(2, 3, set_epoch=False, shuffle=False),
        epochs(2, 1, set_epoch=False),
        epochs(1, 3, set_epoch=True),
    ],
    ids=["new order", "not shuffled", "one epoch", "one rank"],
)
def test_right_order_of_samples_has_no_finding(tmp_path: Path, samples: Any) -> None:
    assert recorded_findings(with_samples(tmp_path, samples)) == []


def test_ranks_that_read_the_same_samples_are_found(tmp_path: Path) -> None:
    found = shared_samples(with_samples(tmp_path, epochs(2, 2, set_epoch=True, split=False)))
    assert found is not None
    assert found.certain
    assert found.finding == "ranks 0 and 1 read the same samples in the same order: more ranks do not read more data"


def test_shared_samples_in_another_order_are_uncertain(tmp_path: Path) -> None:
    ranks = epochs(2, 1, set_epoch=True, split=False)
    ranks[1].reverse()
    found = shared_samples(with_samples(tmp_path, ranks))
    assert found is not None
    assert not found.certain
    assert "ranks 0 and 1 have 100 % of their samples in common" in found.evidence[-1]


def write_observed_ends(folder: Path, world_size: int) -> None:
    """Write the last status of ranks that ended without an error."""
    for rank in range(world_size):
        status = {"format": 1, "rank": rank, "local_rank": rank, "node_rank": 0, "world_size": world_size, "attempt": 0}
        status |= {"host": "a", "pid": 10 + rank, "state": "ended", "cpu_s": 1.0, "rss_bytes": 1}
        status |= dict.fromkeys(("started_unix_ns", "unix_ns", "mono_ns"), 1)
        write_json(folder / f"observed/attempt_0/rank_{rank}/status.json", status)


def test_recorded_findings_lead_the_diagnosis_of_a_run_that_completed(tmp_path: Path) -> None:
    with_samples(tmp_path, epochs(2, 2, set_epoch=True, split=False))
    write_observed_ends(tmp_path, 2)
    found = diagnose_folder(tmp_path)
    assert (found.fault, found.outcome) == ("samples", "completed")
    assert found.advice.startswith("give each rank its own part")


def test_numbers_of_a_program_below_plain_torchrun_are_not_a_run_of_frogs_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "runs/job", [[2.0, 1.0], [2.0, NAN]])
    for rank in (0, 1):
        write(
            tmp_path / "runs/job", "status.json", {**STATUS, "rank": rank, "state": "ended", "no_sync": None}, rank=rank
        )
    for text in ("job", "runs/job", "latest"):
        path, found = diagnose_path(text)
        assert path == Path("runs/job")
        assert (found.fault, found.rank, found.step) == ("nan", 1, 2)

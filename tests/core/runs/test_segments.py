"""Starts of a run as segments: which steps count, whose clock is whose, and where a worker ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from run_files import beat, event, run_json

from frog.core.runs import read_run
from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import archive_heartbeats
from frog.core.runs.history import read_history
from frog.core.runs.record import RunFile

SECOND = 10**9


def write_rank(folder: RunFolder, rank: int, events: list[dict[str, Any]]) -> None:
    path = folder.rank_events(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in events))


def steps(first: int, last: int) -> list[dict[str, Any]]:
    """Return spans and events of steps, in the order in which a rank writes them."""
    return [
        line
        for step in range(first, last + 1)
        for line in (event("span", step=step, phase="forward", end_ns=1), event("step", step=step, end_ns=2))
    ]


def test_a_start_whose_steps_were_all_repeated_does_not_count(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    starts = [event("start", step=0, pid=1), *steps(1, 3), event("start", step=3, pid=2), *steps(4, 5)]
    write_rank(folder, 0, [*starts, event("start", step=3, pid=3), *steps(4, 6)])
    segments = read_history(folder).segments
    assert [segment.counts for segment in segments] == [True, False, True]
    assert [(segment.from_step, segment.until_step, segment.num_retaken) for segment in segments] == [
        (0, 3, 0),
        (3, 3, 0),
        (3, None, 2),
    ]


def test_steps_without_a_readable_start_event_are_a_segment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rank(folder, 0, steps(4, 6))
    (segment,) = read_history(folder).segments
    assert (segment.from_step, segment.until_step) == (3, None)


def test_a_start_without_steps_is_a_segment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rank(folder, 0, [event("start", step=7)])
    (segment,) = read_history(folder).segments
    assert (segment.from_step, segment.until_step, segment.counts) == (7, None, True)


@pytest.mark.parametrize(("apart_s", "is_shared"), [(0.1, True), (0.3, False), (5, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_ranks_whose_clocks_nearly_agree_share_one(tmp_path: Path, apart_s: float, is_shared: bool, sign: int) -> None:
    folder = RunFolder(tmp_path)
    main, own = 1000 * SECOND, 1000 * SECOND + int(sign * apart_s * SECOND)
    for rank, offset in ((0, main), (1, own)):
        start = event("start", rank=rank, world_size=2, unix_ns=offset + 50, mono_ns=50)
        write_rank(folder, rank, [start, *steps(1, 1)])
    assert read_history(folder).clock_offset_ns(1, 0) == (main if is_shared else own)


def test_a_worker_begins_at_each_start_also_after_spans_and_steps(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_rank(folder, 0, [event("start", pid=1), *steps(1, 2), event("start", pid=2, step=2), *steps(3, 3)])
    assert [attempt.workers[0].start.pid for attempt in read_run(folder).attempts] == [1, 2]


def test_heartbeats_of_earlier_worlds_are_moved_by_attempt_and_epoch(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.heartbeats.mkdir(parents=True)
    for rank, changes in enumerate([{}, {"epoch": 2}, {"attempt": 1}, {"attempt": 1, "epoch": 1}]):
        folder.heartbeats.joinpath(f"rank_{rank}.json").write_text(json.dumps(beat(rank=rank, **changes)))
    archive_heartbeats(folder, attempt=1, epoch=1)
    left = {path.relative_to(folder.heartbeats).as_posix() for path in folder.heartbeats.rglob("*.json")}
    assert left == {"attempt_0/rank_0.json", "attempt_0_epoch_2/rank_1.json", "attempt_1/rank_2.json", "rank_3.json"}


@pytest.mark.parametrize("value", [1, 64, 2**62])
def test_a_positive_integer_of_the_configuration_is_a_count(value: int) -> None:
    file = msgspec.convert(run_json(config={"train": {"steps": value}}), RunFile)
    assert file.count("train", "steps") == value
    assert file.count("train", "epochs") is None


@pytest.mark.parametrize("value", [0, -1, 2**63, True, 1.5, "8", None])
def test_any_other_value_of_the_configuration_is_no_count(value: Any) -> None:
    file = msgspec.convert(run_json(config={"train": {"steps": value}}), RunFile)
    assert file.count("train", "steps") is None

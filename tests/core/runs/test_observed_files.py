"""The reader of what the observer wrote: evidence of ranks that may have been killed, or come from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from frog.core.runs.observed import Status, observed_folder, read_observed, read_statuses, write_request

LINE = {"file": "/home/me/train.py", "line": 12, "function": "main"}
STATUS: dict[str, Any] = {
    "format": 1,
    **dict.fromkeys(("rank", "local_rank", "node_rank", "attempt", "answered"), 0),
    "world_size": 2,
    "host": "a",
    "pid": 7,
    "start": "pod-1",
    "started_unix_ns": 1,
    "unix_ns": 2,
    "mono_ns": 3,
    "state": "running",
    "cpu_s": 1.5,
    "rss_bytes": 10,
    "groups": [{"group": "0", "enqueued": 9, "completed": 8}],
    "line": LINE,
    "in": LINE,
    "in_message": False,
    "no_sync": {"entered": 4, "without_effect": 4, "line": LINE},
    "samples": {"taken": 2, "in_collective": 1, "waiting": 0, "lines": [["a.py:1", 2]], "causes": {"gc": 1}},
    "memory": [[0, 300], [9, 310]],
    "thread": "",
    "torch": "2.13.0",
    "backend": "gloo",
}
COLLECTIVES = {
    "format": 1,
    "rank": 0,
    "pid": 7,
    "unix_ns": 5,
    "frames": True,
    "groups": {"0": {"description": "default_pg", "ranks": [0, 1]}},
    "entries": [{"group": "0", "seq": 9, "op": "all_reduce", "done": False, "line": LINE, "sizes": [[2, 3]]}],
}


def write(run: Path, name: str, content: Any, rank: int = 0, attempt: int = 0) -> None:
    path = observed_folder(run) / f"attempt_{attempt}" / f"rank_{rank}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_evidence_is_read_by_attempt_and_rank(tmp_path: Path) -> None:
    write(tmp_path, "status.json", STATUS)
    write(tmp_path, "collectives.json", COLLECTIVES)
    write(tmp_path, "status.json", {**STATUS, "rank": 1, "attempt": 1, "state": "failed"}, rank=1, attempt=1)
    found = read_observed(tmp_path)
    assert {attempt: list(ranks) for attempt, ranks in found.items()} == {0: [0], 1: [1]}
    status, collectives = found[0][0].status, found[0][0].collectives
    assert status is not None
    assert collectives is not None
    assert (str(status.line), status.groups[0].pending, status.samples.lines) == (
        "/home/me/train.py:12",
        True,
        [("a.py:1", 2)],
    )
    assert (collectives.entries[0].seq, collectives.groups["0"].ranks) == (9, [0, 1])
    assert found[0][0].stacks is None
    assert read_statuses(tmp_path, 1)[1].state == "failed"


def test_folder_without_evidence_is_empty(tmp_path: Path) -> None:
    assert read_observed(tmp_path) == {}
    assert read_statuses(tmp_path / "nowhere", 0) == {}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 2}', '{"format": 1, "rank": "x"}', "[" * 5000, "\x00" * 10], ids=repr
)
def test_damaged_file_is_none_and_a_problem(tmp_path: Path, content: str) -> None:
    write(tmp_path, "status.json", content)
    found = read_observed(tmp_path)[0][0]
    assert found.status is None
    assert len(found.problems) == 1
    assert read_statuses(tmp_path, 0) == {}


def test_foreign_names_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, "status.json", STATUS)
    for name in ("attempt_x", "attempt_0/rank_", "attempt_0/rank_1_old", "attempt_99999999"):
        (observed_folder(tmp_path) / name).mkdir(parents=True)
    (observed_folder(tmp_path) / "attempt_7").write_text("a file")
    assert {attempt: list(ranks) for attempt, ranks in read_observed(tmp_path).items()} == {0: [0]}


def test_unknown_fields_of_a_newer_observer_are_ignored(tmp_path: Path) -> None:
    write(tmp_path, "status.json", {**STATUS, "new": [1]})
    assert read_observed(tmp_path)[0][0].problems == []


def test_requests_are_numbered_and_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    assert [write_request(tmp_path, "hang"), write_request(tmp_path, "user")] == [1, 2]
    (observed_folder(tmp_path) / "request.json").write_text("{")
    assert write_request(tmp_path, "user") == 1


def test_status_encodes_to_the_documented_names() -> None:
    status = msgspec.convert({key: value for key, value in STATUS.items() if key != "format"}, Status)
    assert set(msgspec.to_builtins(status)) | {"format"} == set(STATUS)


def test_status_is_fresh_for_a_few_beats_and_only_of_a_running_rank(tmp_path: Path) -> None:
    """Ranks write twice a second; a rank without a status for 5 s is gone."""
    write(tmp_path, "status.json", STATUS)
    status = read_statuses(tmp_path, 0)[0]
    written = STATUS["unix_ns"]
    times = (0, 4_999_999_999, 5_000_000_000, 60 * 10**9)
    assert [status.is_fresh(written + ns) for ns in times] == [True, True, False, False]
    write(tmp_path, "status.json", {**STATUS, "state": "failed"})
    assert not read_statuses(tmp_path, 0)[0].is_fresh(written)


def counts(group: str, enqueued: int, completed: int) -> dict[str, Any]:
    return {"group": group, "enqueued": enqueued, "completed": completed}


@pytest.mark.parametrize(
    ("dumped", "backend", "last", "expected"),
    [
        (None, "", 0, [(9, 8), (3, 3)]),
        ([counts("0", 9, 8)], "gloo", 5, [(6, 5), (3, 3)]),  # three of eight were messages
        ([counts("0", 9, 8)], "gloo", 8, [(9, 8), (3, 3)]),
        ([counts("0", 9, 8)], "gloo", 9, [(9, 8), (3, 3)]),
        ([counts("0", 9, 8)], "nccl", 5, [(9, 8), (3, 3)]),
        ([counts("0", 99, 90)], "gloo", 5, [(0, 0), (3, 3)]),
    ],
)
def test_messages_that_gloo_counts_are_no_collectives(
    tmp_path: Path, dumped: Any, backend: str, last: int, expected: list[tuple[int, int]]
) -> None:
    write(tmp_path, "status.json", {**STATUS, "groups": [counts("0", 9, 8), counts("1", 3, 3)]})
    if dumped is not None:
        entry = {"group": "0", "seq": last, "op": "all_reduce", "done": True, "backend": backend}
        write(tmp_path, "collectives.json", {**COLLECTIVES, "status": dumped, "entries": [entry]})
    observed = read_observed(tmp_path)[0][0]
    assert [(group.enqueued, group.completed) for group in observed.groups] == expected
    assert observed.num_completed == sum(completed for _, completed in expected)
    assert [group.pending for group in observed.groups] == [one != other for one, other in expected]


def test_rank_without_a_status_has_completed_nothing(tmp_path: Path) -> None:
    write(tmp_path, "crash.txt", "Fatal \x80")
    observed = read_observed(tmp_path)[0][0]
    assert (observed.groups, observed.num_completed, observed.crash) == ([], 0, "Fatal \x80")
    for number in range(66):
        frames = {"format": 1, "rank": 0, "pid": 1, "unix_ns": 1, "worker": number}
        write(tmp_path, f"worker_{number:03}.json", frames)
    assert [worker.worker for worker in read_observed(tmp_path)[0][0].workers] == list(range(64))

"""The watchdog: the ranks that it reports as hanging, and those that it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from run_files import beat

from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import archive_heartbeats
from frog.launch.watchdog import find_hangs

S = 1_000_000_000


@pytest.fixture
def living() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield process.pid
    process.kill()
    process.wait()


def leave_beat(folder: RunFolder, pid: int, rank: int = 1, **changes: Any) -> None:
    now_ns = time.monotonic_ns()
    folder.heartbeats.mkdir(exist_ok=True)
    folder.heartbeat(rank).write_text(json.dumps(beat(pid=pid, beat_ns=now_ns) | changes))


def opened(start_ns: int) -> dict[str, Any]:
    return {"seq": 0, "op": "all_reduce", "axis": "dp", "payload_bytes": 4, "start_ns": start_ns}


def test_heartbeats_of_the_current_attempt_are_not_archived(tmp_path: Path) -> None:
    """The ranks of a new world may write heartbeats before the launcher learns of that world."""
    folder = RunFolder(tmp_path)
    leave_beat(folder, 7, attempt=1)
    archive_heartbeats(folder, 1)
    assert folder.heartbeat(1).exists()
    archive_heartbeats(folder, 2)
    assert not folder.heartbeat(1).exists()
    assert (folder.heartbeats / "attempt_1" / "rank_1.json").exists()


@pytest.mark.parametrize("after", [(0, 4), (1, 0)])
def test_heartbeats_of_a_previous_world_are_archived(after: tuple[int, int], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    leave_beat(folder, 7, attempt=0, epoch=3)
    archive_heartbeats(folder, 0, 3)
    assert folder.heartbeat(1).exists()
    archive_heartbeats(folder, *after)
    assert not folder.heartbeat(1).exists()
    assert (folder.heartbeats / "attempt_0_epoch_3" / "rank_1.json").exists()


def test_archive_of_the_first_world_has_no_epoch_in_its_name(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    leave_beat(folder, 7, attempt=0, epoch=0)
    archive_heartbeats(folder, 0, 2)
    assert (folder.heartbeats / "attempt_0" / "rank_1.json").exists()


def kinds(folder: RunFolder, pid: int) -> list[str]:
    return [hang.kind for hang in find_hangs(folder, {1: pid}, deadline_s=5, stuck_s=60)]


def test_living_rank_is_reported_as_silent_or_stuck(tmp_path: Path, living: int) -> None:
    folder, now_ns = RunFolder(tmp_path), time.monotonic_ns()
    assert kinds(folder, living) == []
    leave_beat(folder, living)
    assert kinds(folder, living) == []
    leave_beat(folder, living, beat_ns=now_ns - 6 * S)
    assert kinds(folder, living) == ["silent"]
    leave_beat(folder, living, open=[opened(now_ns - 50 * S)])
    assert kinds(folder, living) == []
    leave_beat(folder, living, open=[opened(now_ns - 61 * S)])
    assert kinds(folder, living) == ["stuck"]
    leave_beat(folder, living, open=[opened(now_ns - 61 * S)], timeout_s=40)
    assert kinds(folder, living) == [], "its own collectives may take this long"


def test_hang_of_a_renumbered_rank_is_reported_with_its_original_number(tmp_path: Path, living: int) -> None:
    folder = RunFolder(tmp_path)
    leave_beat(folder, living, rank=0, beat_ns=time.monotonic_ns() - 6 * S)
    (hang,) = find_hangs(folder, {1: living}, deadline_s=5, stuck_s=60)
    assert (hang.rank, hang.pid) == (1, living), "the launcher knows it by the number that it started with"


def test_completed_rank_has_more_time_to_exit(tmp_path: Path, living: int) -> None:
    folder, now_ns = RunFolder(tmp_path), time.monotonic_ns()
    leave_beat(folder, living, beat_ns=now_ns - 50 * S, status="completed")
    assert kinds(folder, living) == []
    leave_beat(folder, living, beat_ns=now_ns - 61 * S, status="completed")
    assert kinds(folder, living) == ["silent"]


def test_watchdog_ignores_ended_ranks(tmp_path: Path, living: int) -> None:
    folder, long_ago_ns = RunFolder(tmp_path), time.monotonic_ns() - 600 * S
    leave_beat(folder, os.getpid(), beat_ns=long_ago_ns)  # from an earlier world
    assert kinds(folder, living) == []
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    leave_beat(folder, ended.pid, beat_ns=long_ago_ns)
    assert kinds(folder, ended.pid) == []


@pytest.mark.parametrize(
    ("seen", "kind", "waited_s"),
    [({"beat_ns": 94 * S}, "silent", 6.0), ({"beat_ns": 99 * S, "open": [opened(39 * S)]}, "stuck", 61.0)],
)
def test_hang_says_how_long_the_rank_has_waited(
    seen: dict[str, Any], kind: str, waited_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    leave_beat(folder, os.getpid(), **seen)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 100 * S)
    (hang,) = find_hangs(folder, {1: os.getpid(), 0: 1}, deadline_s=5, stuck_s=60)
    assert (hang.rank, hang.kind, hang.waited_s) == (1, kind, waited_s)
    assert list(find_hangs(folder, {1: os.getpid()}, deadline_s=waited_s, stuck_s=waited_s)) == []


def test_oldest_open_collective_counts_and_a_hang_of_one_rank_does_not_hide_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path)
    leave_beat(folder, os.getpid(), 0, beat_ns=99 * S, open=[opened(30 * S), opened(98 * S)])
    leave_beat(folder, os.getppid(), 1, beat_ns=80 * S)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 100 * S)
    pids = {0: os.getpid(), 1: os.getppid()}
    assert [(hang.rank, hang.kind, hang.waited_s) for hang in find_hangs(folder, pids, 5, 60)] == [
        (0, "stuck", 70.0), (1, "silent", 20.0),
    ]  # fmt: skip

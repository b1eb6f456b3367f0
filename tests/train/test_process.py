"""The report of a rank's error: its message, and the time of the exit."""

from __future__ import annotations

import errno
import json
import signal
from pathlib import Path

import pytest

from frog.core.env import WorldEnv
from frog.core.errors import CheckpointError, CommError, FrogError, UsageError
from frog.core.runs.folder import RunFolder
from frog.train import process
from frog.train.process import RankProcess


def reporter_of(rank: int, world_size: int = 2, folder: Path | None = None) -> RankProcess:
    reporter = RankProcess()
    reporter.env = WorldEnv(rank, world_size, rank, world_size, 0, 1, "127.0.0.1", 1, launched=True)
    reporter.folder = RunFolder(folder) if folder else None
    return reporter


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that a rank would sleep under another launcher."""
    seconds: list[float] = []
    monkeypatch.setattr("time.sleep", seconds.append)
    monkeypatch.setattr("time.monotonic", lambda: sum(seconds))
    monkeypatch.setattr(process, "launcher_pid", lambda: None)
    return seconds


@pytest.mark.parametrize(
    ("cause", "code", "rank", "world_size", "waits_s"),
    [
        (CommError("closed"), 1, 0, 2, 2.0),
        (CommError("closed"), 1, 0, 1, 0.0),
        (UsageError("wrong"), 2, 1, 2, 2.0),
        (UsageError("wrong"), 2, 0, 2, 0.0),
        (CheckpointError("torn"), 1, 1, 2, 0.0),
        (None, 130, 1, 2, 0.0),
    ],
)
def test_rank_that_lost_a_peer_exits_later(
    waited: list[float], cause: FrogError | None, code: int, rank: int, world_size: int, waits_s: float
) -> None:
    reporter_of(rank, world_size).let_others_go_first(code, cause)
    assert sum(waited) == pytest.approx(waits_s)


def test_sigterm_ends_the_exit_delay(waited: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    follower = reporter_of(1)

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) > 0.5:
            follower.stop._note(signal.SIGTERM, None)

    monkeypatch.setattr("time.sleep", sleep)
    follower.let_others_go_first(1, CommError("closed"))
    assert 0.5 < sum(waited) < 0.6


@pytest.mark.parametrize(
    ("cause", "code", "waits_s"),
    [
        (None, 0, [0.0, 0.0, 0.0, 0.0, 0.0]),
        (None, 143, [0.0, 0.2, 0.4, 2.0, 2.0]),
        (CheckpointError("torn"), 1, [0.0, 0.2, 0.4, 2.0, 2.0]),
        (CommError("closed"), 1, [4.0, 4.2, 4.4, 6.0, 6.0]),
    ],
)
def test_ranks_exit_one_after_another_under_mpich(
    waited: list[float], cause: FrogError | None, code: int, waits_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "3"}.items():
        monkeypatch.setenv(name, value)
    for rank, waits in zip((0, 1, 2, 10, 255), waits_s, strict=True):
        waited.clear()
        reporter = reporter_of(rank, 256)
        if cause is None:  # a signal stopped the whole group: ranks still exit one after another
            reporter.stop._note(signal.SIGTERM, None)
        reporter.let_others_go_first(code, cause)
        assert sum(waited) == pytest.approx(waits)


def test_ranks_exit_without_delay_under_frog_run(waited: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "launcher_pid", lambda: 1)
    reporter_of(1).let_others_go_first(1, CommError("closed"))
    assert waited == []


def test_full_disk_error_names_the_last_complete_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reporter = reporter_of(0, folder=tmp_path)
    RunFolder(tmp_path).checkpoint(4).mkdir(parents=True)
    assert reporter.report(OSError(errno.ENOSPC, "No space left on device")) == 1
    err = capsys.readouterr().err
    assert "the disk is full: [Errno 28] No space left on device" in err
    assert f"the last complete checkpoint is from step 4; free disk space, then `frog train --resume {tmp_path}`" in err


def test_full_disk_error_without_a_checkpoint_suggests_a_new_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter_of(0, folder=tmp_path).report(OSError(errno.ENOSPC, "No space left on device"))
    assert "try: free disk space, then start again" in capsys.readouterr().err


def test_recorded_failure_is_that_of_the_rank_that_caused_it(tmp_path: Path) -> None:
    def recorded() -> int:
        return int(json.loads((tmp_path / "attempt.json").read_text())["error"]["rank"])

    reporter_of(0, folder=tmp_path).report(CommError("closed"))
    assert recorded() == 0
    reporter_of(1, folder=tmp_path).report(CheckpointError("torn"))
    reporter_of(0, folder=tmp_path).report(CommError("closed"))
    assert recorded() == 1


def test_folder_without_write_permission_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "launcher_pid", lambda: None)
    assert reporter_of(0, 1).report(PermissionError(errno.EACCES, "Permission denied", "runs/demo")) == 1
    said = capsys.readouterr().err
    assert "error: runs/demo: Permission denied" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 2 GiB"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_reported_without_a_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "launcher_pid", lambda: None)
    assert reporter_of(0, world_size=1).report(error) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: out of memory: {error}\n  try: ")
    assert "Traceback" not in said

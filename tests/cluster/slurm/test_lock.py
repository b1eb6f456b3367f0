"""The lock on a cluster's folder; the lock file is removed with the folder."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import LIMIT_S

from frog.cluster.simulated_cluster import locked
from frog.core.errors import UsageError


def test_lock_is_exclusive_and_leaves_no_files(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b"):
        with pytest.raises(UsageError, match="another `frog slurm` is using it"), locked(tmp_path / "a" / "b"):
            pass
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.glob("a/*")) == []


def test_unusable_lock_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot be used as the cluster's folder: Not a directory"), locked(folder):
            pass


def test_lock_on_a_removed_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a second process's opening and locking of the file, the first leaves and a third enters."""
    first, third = ExitStack(), ExitStack()
    first.enter_context(locked(tmp_path / "cluster"))
    flock = fcntl.flock

    def late(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        first.close()
        third.enter_context(locked(tmp_path / "cluster"))
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with third, pytest.raises(UsageError, match="another `frog slurm` is using it"), locked(tmp_path / "cluster"):
        pass
    assert not (tmp_path / "cluster").exists()


CONTENDER = """
import os, sys
from pathlib import Path
from frog.core.errors import UsageError
from frog.cluster.simulated_cluster import locked

folder, inside, entered = Path(sys.argv[1]), Path(sys.argv[2]), 0
while entered < 100:
    try:
        with locked(folder):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails if the other process is inside too
            os.unlink(inside)
            entered += 1
    except UsageError:
        pass
"""


def test_two_processes_never_hold_the_lock_together(tmp_path: Path) -> None:
    words = [sys.executable, "-c", CONTENDER, str(tmp_path / "cluster"), str(tmp_path / "inside")]
    both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        assert [process.communicate(timeout=LIMIT_S)[1] for process in both] == ["", ""]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert not (tmp_path / "cluster").exists()

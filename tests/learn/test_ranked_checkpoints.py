"""The driver of exercise 3.14 runs load once for folders that load cannot tell apart."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from frog.learn.grader.exercise import LABS


@pytest.fixture
def drive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drive", LABS / "lab3/14_ranked_checkpoints/drive.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with two shards, of which the first is older."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    for rank in range(2):
        (folder / f"rank_{rank}").write_bytes(b"shard %d" % rank)
        os.utime(folder / f"rank_{rank}", ns=(rank, rank))
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda work: (work / "rank_1").write_bytes(b"shard 2"),
        lambda work: os.utime(work / "rank_0", ns=(2, 2)),
        lambda work: (work / "rank_2").mkdir(),
        lambda work: (work / "rank_1").rename(work / "rank_2"),
        lambda work: (work / "rank_1").chmod(0o600),
    ],
    ids=["bytes", "order-of-times", "folder", "name", "mode"],
)
def test_folders_that_load_can_tell_apart_have_different_states(
    drive: ModuleType, work: Path, change: Callable[[Path], object]
) -> None:
    before = drive.state_of(work)
    assert drive.state_of(work) == before
    change(work)
    assert drive.state_of(work) != before


@pytest.mark.parametrize("target", ["/etc", "../base"])
def test_folder_with_a_link_to_another_place_equals_no_other(drive: ModuleType, work: Path, target: str) -> None:
    (work / "latest").symlink_to(target)
    assert drive.state_of(work) != drive.state_of(work)


def test_file_with_the_path_of_another_folder_equals_no_other(drive: ModuleType, work: Path) -> None:
    (work / "latest").write_text(str(work.with_name("base")))
    assert drive.state_of(work) != drive.state_of(work)


def test_load_runs_once_for_equal_folders_unless_it_changes_them(
    drive: ModuleType, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    monkeypatch.setattr(drive, "load_in_fork", lambda folder, size: runs.append(size) or [None] * size)
    for size in (1, 2, 2):
        assert drive.run_load(work, size) == [None] * size
    assert runs == [1, 2]

    def change(folder: Path, size: int) -> list[None]:
        (folder / "seen").touch()
        return [None] * size

    monkeypatch.setattr(drive, "load_in_fork", change)
    drive.run_load(work, 3)
    assert [size for _, size in drive.LOADED] == [1, 2], "a folder in its earlier state must be loaded again"

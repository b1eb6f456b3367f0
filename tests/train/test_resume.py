"""The data and checkpoint of a resumed run, and the end of ranks with their parent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import write_run

from frog.core.errors import CheckpointError, RunError
from frog.core.runs.folder import RunFolder
from frog.train import process
from frog.train.setup import check_resume, find_resume


def test_resume_with_another_data_set_raises_run_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    check_resume(folder, "rhymes", "a" * 64)
    write_run(folder, 1, "a" * 64)
    check_resume(folder, "rhymes", "a" * 64)
    with pytest.raises(RunError, match=r"started on data set rhymes \(aaaaaaaaaaaa\).*rhymes \(bbbbbbbbbbbb\)"):
        check_resume(folder, "rhymes", "b" * 64)


def test_rank_without_rank_0s_checkpoint_raises_checkpoint_error(tmp_path: Path) -> None:
    """Otherwise it would train with different weights from the other ranks."""
    world: Any = SimpleNamespace(is_main=False, rank=1, from_main=lambda mine: (20, []))
    log: Any = None
    folder = RunFolder(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"step_00000020: rank 0 resumes from it, but rank 1 cannot read it: no such"
    ):
        find_resume(folder, world, log)
    folder.checkpoint(20).mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"rank 1 cannot read it: .*step_00000020: incomplete: no manifest\.json"):
        find_resume(folder, world, log)


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [({}, False), ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, True), ({"FROG_LAUNCHER_PID": "1"}, True)],
)
def test_rank_ends_with_its_parent_only_under_a_launcher(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], leaves: bool
) -> None:
    """Without a launcher it continues when its shell is closed, as under nohup."""
    called: list[Any] = []
    monkeypatch.setattr(process, "leave_with_parent", lambda: called.append(1))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "FROG_LAUNCHER_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **changes}.items():
        monkeypatch.setenv(name, value)
    with process.RankProcess() as rank:
        rank.begin()
    assert rank.exit_code == 0
    assert bool(called) == leaves

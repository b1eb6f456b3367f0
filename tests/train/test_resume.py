"""The data and checkpoint of a resumed run, and the end of ranks with their parent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from in_process import write_run

from frog.core.errors import CheckpointError, RunError
from frog.core.runs.folder import RunFolder
from frog.train import process
from frog.train.checkpoint import Saver
from frog.train.comm.local_shard import LocalShard
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


@pytest.mark.parametrize("may_start_over", [False, True])
@pytest.mark.parametrize(("damaged", "step"), [((), 20), ((20,), 10), ((10, 20), None)])
def test_run_resumes_at_its_last_intact_checkpoint(
    damaged: tuple[int, ...], step: int | None, may_start_over: bool, tmp_path: Path
) -> None:
    """Without any it starts over only where that is allowed, and without any saved one always."""
    folder, said = RunFolder(tmp_path), []
    world: Any = SimpleNamespace(is_main=True, rank=0, from_main=lambda mine: mine)
    log: Any = SimpleNamespace(say=said.append)
    assert find_resume(folder, world, log, may_start_over=may_start_over) == (None, [])
    for saved in (10, 20):
        own = {"rng": torch.zeros(4, dtype=torch.uint8)}
        weights = LocalShard("model/w", torch.ones(3), (0,), (3,))
        saver = Saver(folder, 0, 1, [weights], own, attempt="x", keep_last=9, timeout_s=60)
        saver.save(saved, {"step": saved}, own)
        saver.wait()
    for saved in damaged:
        (folder.checkpoint(saved) / "manifest.json").unlink()
    if step is None and not may_start_over:
        with pytest.raises(CheckpointError, match="none of the 2 checkpoints is intact") as refused:
            find_resume(folder, world, log)
        assert len(refused.value.facts.damage) == 2
        return
    checkpoint, passed_over = find_resume(folder, world, log, may_start_over=may_start_over)
    assert (checkpoint.step if checkpoint else None) == step
    assert len(passed_over) == len(damaged)
    started_over = ["no intact checkpoint: the run restarts at step 0"] if step is None else []
    assert said == [*(f"skipped checkpoint: {damage}" for damage in passed_over), *started_over]


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

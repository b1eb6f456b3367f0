"""What a run goes on with, and under whom its ranks leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_process import write_run

from frog.core.errors import RunError
from frog.core.runfolder import RunFolder
from frog.train import failure
from frog.train.setup import check_resume


def test_a_run_goes_on_with_the_data_that_it_was_begun_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    check_resume(folder, "rhymes", "a" * 64)
    write_run(folder, 1, "a" * 64)
    check_resume(folder, "rhymes", "a" * 64)
    with pytest.raises(RunError, match=r"begun on data set rhymes \(aaaaaaaaaaaa\).*rhymes \(bbbbbbbbbbbb\)"):
        check_resume(folder, "rhymes", "b" * 64)


@pytest.mark.parametrize(
    ("changes", "leaves"),
    [({}, False), ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, True), ({"FROG_LAUNCHER_PID": "1"}, True)],
)
def test_only_under_a_launcher_a_rank_leaves_with_its_parent(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], leaves: bool
) -> None:
    """By itself it goes on when its shell is closed, as under nohup."""
    called: list[Any] = []
    monkeypatch.setattr(failure, "leave_with_parent", lambda: called.append(1))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "FROG_LAUNCHER_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", **changes}.items():
        monkeypatch.setenv(name, value)
    assert failure.as_rank(lambda env, stop, place: 0) == 0
    assert bool(called) == leaves

"""What a run goes on with, and under whom its ranks leave."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frog.core.errors import RunError
from frog.core.runfolder import RunFolder
from frog.data import PreparedData
from frog.train import failure
from frog.train.setup import check_resume


def data(sha256: str) -> PreparedData:
    return cast("PreparedData", SimpleNamespace(name="rhymes", data_sha256=sha256))


def test_a_run_goes_on_with_the_data_that_it_was_begun_with(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    check_resume(folder, data("a" * 64))
    folder.run_json.write_text(json.dumps({"data": {"name": "rhymes", "data_sha256": "a" * 64}}))
    check_resume(folder, data("a" * 64))
    with pytest.raises(RunError, match=r"begun on data set rhymes \(aaaaaaaaaaaa\).*rhymes \(bbbbbbbbbbbb\)"):
        check_resume(folder, data("b" * 64))


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

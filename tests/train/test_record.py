"""The record of a run survives all later starts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from harness import Harness, set_words
from in_process import meet_faults, train, write_faults, write_run

from frog.core.runs.folder import RunFolder
from frog.measure.chaos.sandbox import faults_env
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.observe.view.report import render_report
from frog.observe.view.runs import RunRow, list_runs
from frog.train.comm import World
from frog.train.record import write_end, write_failure


@pytest.fixture(scope="module")
def one(harness: Harness) -> Harness:
    """Return the harness with a run of 8 steps."""
    assert train(harness, "run.toml", "--set", "name=one") == 0
    return harness


LONGER = ("--resume", "one", *set_words("train.steps=12"))


def test_no_rank_leaves_before_the_record_is_written(one: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """If rank 0 is lost with the record, the others write it."""
    is_there: list[bool] = []
    record = one.folder("left").record_json
    monkeypatch.setattr(World, "barrier", lambda world: is_there.append(record.exists()))
    assert train(one, "run.toml", *set_words("name=left", "train.steps=1")) == 0
    assert is_there[-1]


def row(one: Harness) -> RunRow:
    return next(row for row in list_runs(one.root / "runs") if row.name == "one")


@pytest.mark.slow
def test_record_survives_later_failed_or_killed_starts(
    one: Harness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Several starts of one run: each finds the record, and leaves it unchanged."""
    folder = one.folder("one")
    record, run = folder.record_json.read_bytes(), folder.run_json.read_bytes()
    assert row(one).status == "completed"

    # A start that fails before its first step is not in the list of starts.
    assert train(one, *LONGER, *set_words("model.hidden_size=64")) == 1
    assert "does not fit this model" in capfd.readouterr().err
    assert folder.record_json.read_bytes() == record
    assert folder.run_json.read_bytes() == run
    attempt = one.record("one")
    assert (attempt["status"], attempt["step"], attempt["error"]["type"]) == ("failed", 0, "CheckpointError")
    assert (row(one).status, row(one).loss) == ("failed", json.loads(record)["loss"])
    assert "does not fit this model" in diagnose(folder).finding
    assert json.loads(record)["weights_sha256"][:12] in render_report(folder)

    # The run is already complete, so there is nothing to do, and nothing fails.
    assert train(one, "--resume", "one") == 0
    assert "already completed its 8 steps" in capfd.readouterr().out
    assert row(one).status == "completed"

    # A start that fails, and starts that are killed, in a step and between steps.
    with monkeypatch.context() as patch:
        meet_faults(patch, faults(one, "nan", "backward", 9))
        assert train(one, *LONGER) == 1
    assert "not finite" in capfd.readouterr().err
    assert folder.record_json.read_bytes() == record
    assert (one.record("one")["status"], one.record("one")["step"]) == ("failed", 9)
    for phase, step in (("data", 9), ("checkpoint", 10), ("evaluate", 12)):
        env = faults_env(faults(one, "kill", phase, step))
        one.run("frog", "train", *LONGER, env=env, code=-signal.SIGKILL)
        assert folder.record_json.read_bytes() == record
        assert folder.read_record() is None
        assert row(one).status == "died"

    # The start that completes gets farther.
    assert train(one, *LONGER) == 0
    assert (one.record("one")["step"], one.record("one")["starts"]) == (12, 6)
    # Its time includes the first start's time up to its checkpoint.
    first = json.loads((folder.checkpoint(8) / "manifest.json").read_text())["state"]
    assert one.record("one")["wall_s"] > first["wall_s"] > 0
    assert row(one).status == "completed"


def faults(one: Harness, kind: str, phase: str, step: int) -> Path:
    return write_faults(
        one.root / f"{kind}-{phase}-{step}.toml", {"kind": kind, "rank": 0, "step": step, "phase": phase}
    )


@pytest.mark.slow
def test_run_that_fails_early_has_no_record(one: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    meet_faults(monkeypatch, faults(one, "nan", "backward", 1))
    assert train(one, "run.toml", "--set", "name=spoiled") == 1
    assert one.folder("spoiled").read_achieved() is None
    assert one.record("spoiled")["status"] == "failed"


@pytest.mark.slow
def test_imported_run_has_no_record(one: Harness) -> None:
    one.run("frog", "export", "one", "--to", "hf", "hf")
    one.run("frog", "import", "hf", "--from", "hf", "--name", "imported")
    assert one.folder("imported").read_record() is None
    assert one.folder("imported").read_run_json().segments == []


# ---- the files ----------------------------------------------------------------------------------------------------


def statuses(folder: RunFolder) -> tuple[Any, Any]:
    """Return status and step of the record and of the last start."""
    return tuple(found and (found.status, found.step) for found in (folder.read_achieved(), folder.read_record()))


def test_only_an_equally_far_start_replaces_the_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_run(folder, 1)
    write_end(folder, {"status": "completed", "step": 8})
    write_run(folder, 2)
    assert statuses(folder) == (("completed", 8), None)
    write_end(folder, {"status": "interrupted", "step": 6})
    assert statuses(folder) == (("completed", 8), ("interrupted", 6))
    folder.attempt_json.unlink()
    write_run(folder, 3)
    write_end(folder, {"status": "interrupted", "step": 8})
    assert statuses(folder) == (("interrupted", 8), ("interrupted", 8))


def test_failure_does_not_replace_the_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write_run(folder, 1)
    write_end(folder, {"status": "interrupted", "step": 3})
    mine, theirs = ({"type": "E", "message": text, "rank": 0, "step": 5} for text in ("mine", "a peer's"))
    write_failure(folder, 5, mine, replace=True)
    write_failure(folder, 4, theirs, replace=False)
    assert statuses(folder) == (("interrupted", 3), ("failed", 5))
    assert "mine" in folder.attempt_json.read_text()

"""A run that Frog 0.1.0 recorded stays readable, and today's Frog continues it from its checkpoint.

`recorded/run_of_0_1_0` is the run of `frog run --nproc 2 --threads 1 -- train chaos/tiny.toml` with 4 steps and a
checkpoint every 2 (the last one is left out), written on 2026-11-28 by commit 18108213. It is never rewritten.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs import read_run
from frog.core.runs.event_schema import CollectiveEvent
from frog.core.runs.folder import RunFolder
from frog.train.checkpoint.load import open_checkpoint

RECORDED = RunFolder(Path(__file__).parent / "recorded" / "run_of_0_1_0")


def test_all_files_of_the_run_are_read_without_a_problem() -> None:
    run = read_run(RECORDED)
    assert run.problems == []
    assert run.record is not None
    assert run.record.status == "completed"
    (attempt,) = run.attempts
    assert [worker.last_step for worker in attempt.workers.values()] == [4, 4]
    assert all(worker.of(CollectiveEvent) for worker in attempt.workers.values())


def test_checkpoint_of_the_run_is_complete() -> None:
    checkpoint = open_checkpoint(RECORDED.checkpoint(2))
    assert checkpoint.manifest.step == 2


@pytest.fixture(scope="module")
def here(harness: Harness) -> Harness:
    """Return the harness with a copy of the run as if it had been killed after step 2, and its data set."""
    prepare = "from frog.measure.chaos.sandbox import tiny_program; tiny_program()"
    harness.run(sys.executable, "-c", prepare, warm=False)
    shutil.copytree(RECORDED.path, harness.folder("old").path)
    harness.folder("old").record_json.unlink()
    shutil.copytree(RECORDED.path, harness.folder("whole").path)
    return harness


def test_report_and_diagnosis_of_the_run_work(here: Harness) -> None:
    here.run("frog", "report", "whole")
    assert "4 steps" in here.run("frog", "diagnose", "whole").stdout


def test_run_continues_from_its_checkpoint_to_the_recorded_result(here: Harness) -> None:
    here.run("frog", "run", "--nproc", "2", "--threads", "1", "--", "train", "--resume", "old")
    expected, found = json.loads(RECORDED.record_json.read_text()), here.record("old")
    assert found["order_sha256"] == expected["order_sha256"]
    assert (found["step"], found["status"]) == (4, "completed")
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)  # processors round differently
    assert found["eval"]["loss"] == pytest.approx(expected["eval"]["loss"], rel=1e-5)

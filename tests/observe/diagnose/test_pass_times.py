"""Seconds of a rank's passes, without its waits in collectives."""

from __future__ import annotations

from pathlib import Path

import pytest
from failed_run import GRADIENT, FailedRun

from frog.core.runs import read_run
from frog.observe.diagnose.case import Case
from frog.observe.diagnose.slow_rules import pass_times


def test_pass_times_are_seconds_without_waits(tmp_path: Path) -> None:
    run = FailedRun(tmp_path / "run", 2)
    run.start()
    for rank in run.ranks:
        run.do(rank, 1, "forward", took_ms=40)
        run.do(rank, 1, "forward", GRADIENT, took_ms=250, wait_ms=100)
        run.do(rank, 1, "backward", took_ms=80)
    recorded = read_run(run.folder)
    times = pass_times(Case(recorded, recorded.attempts[-1]))
    assert {(phase, number): len(seconds) for (_, phase, number), seconds in times.items()} == {
        ("forward", 0): 2,
        ("forward", 1): 2,
        ("backward", 0): 2,
    }
    for (_, phase, number), seconds in times.items():
        assert seconds == pytest.approx([{"forward": (0.04, 0.25), "backward": (0.08,)}[phase][number]] * 2, rel=0.01)

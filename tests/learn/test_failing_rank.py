"""Lab 3.8's failing rank fails only after the other one has trained, so that the check does not judge too early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import wait_until

from frog.learn.grader.exercise import LABS

WORKER = LABS / "lab3" / "08_jobs_that_end" / "worker.py"


def test_failing_rank_waits_until_the_other_has_trained(tmp_path: Path) -> None:
    def start(rank: int) -> subprocess.Popen[bytes]:
        job = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_PROCID": str(rank), "SLOWNESS": "100"}
        words = [sys.executable, str(WORKER), "--checkpoint", "kept", "--fail", "1"]
        return subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **job})

    def noted() -> list[tuple[str, Any]]:
        path = tmp_path / "notes" / "1.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [(what, value) for _, _, what, value in map(json.loads, lines) if what != "started"]

    with start(1) as failing:
        wait_until(lambda: ("trained", 1) in noted(), "rank 1 has trained")
        with start(0) as other:
            assert failing.wait(60) == 7
            assert noted() == [("trained", 1), ("trained", 0), ("failed", 1)]
            other.terminate()

"""config/slurm_example.sbatch under the emulator: near its time limit it saves, is requeued, and resumes."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import Harness, wait_until
from slurm_harness import RealSlurm

from frog.cluster.emulator import emulated_cluster as cluster
from frog.core.runs.heartbeat import read_heartbeat

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = "config/slurm_example.sbatch"
STEPS = 200


@pytest.fixture
def emulated(harness: Harness, tmp_path: Path) -> Iterator[RealSlurm]:
    """The emulator with the query methods of the real Slurm's tests."""
    (harness.root / "config").mkdir(exist_ok=True)
    for name, target in ((EXAMPLE, EXAMPLE), ("train.py", "train.py")):
        shutil.copy(ROOT / name, harness.root / target)
    shutil.copy(harness.root / "run.toml", harness.root / "config" / "demo.toml")
    shutil.copy(harness.root / "config.json", harness.root / "config")
    if not (harness.root / ".venv").exists():
        (harness.root / ".venv").symlink_to(sys.prefix)
    folder = tmp_path / "cluster"
    cluster.up(folder, 2, 4, 64)
    try:
        yield RealSlurm(folder, {**os.environ, **cluster.environment(folder)})
    finally:
        cluster.down(folder)


@pytest.mark.timeout(1800)
def test_requeued_example_job_reaches_the_same_weights(harness: Harness, emulated: RealSlurm) -> None:
    """Run two nodes with two ranks each; a rank of one job is stopped until the signal has arrived."""
    words = ("--set", f"train.steps={STEPS}", "--set", "train.timeout_s=600")

    def submit() -> str:
        size = ("--gpus-per-node=2", "--cpus-per-task=8")
        return emulated.ask("sbatch", "--parsable", *size, EXAMPLE, *words, cwd=harness.root).strip()

    hasty = submit()
    folder, log = harness.folder(f"frog-{hasty}"), harness.root / f"slurm-{hasty}.out"

    def beat(rank: int) -> dict[str, Any]:
        found = read_heartbeat(folder.heartbeat(rank))
        return msgspec.to_builtins(found) if found else {"step": 0}

    wait_until(lambda: beat(1)["step"] >= 20 or (log.exists() and "cleanup" in log.read_text()), "20 steps")
    assert "cleanup" not in log.read_text(), log.read_text()
    stopped = beat(1)["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        emulated.ask("scontrol", "update", f"JobId={hasty}", "EndTime=now+60seconds")
        wait_until(lambda: "limit is near" in log.read_text(), "the signal")
        emulated.ask("scontrol", "update", f"JobId={hasty}", "TimeLimit=30")  # once is enough
    finally:
        os.kill(stopped, signal.SIGCONT)
    calm = submit()
    for job_id in (hasty, calm):
        job = emulated.wait_for(job_id, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", limit_s=510)
        said = [path.read_text() for path in sorted(harness.root.glob(f"slurm-{job_id}*.out"))]
        assert job["JobState"] == "COMPLETED", "\n".join(said)

    assert emulated.job(hasty)["Restarts"] == "1"
    output = log.read_text()
    assert (
        output.index("limit is near") < output.index("cleanup: ") < output.index("requeue: ") < output.index("start 1,")
    )
    begun = [segment.from_step for segment in folder.read_run_json().segments]
    assert begun[0] == 0
    assert 20 <= begun[1] < STEPS
    one, other = harness.record(f"frog-{calm}"), harness.record(f"frog-{hasty}")
    assert one["status"] == other["status"] == "completed"
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["order_sha256"] == other["order_sha256"]
    assert beat(2)["host"] == "node2"

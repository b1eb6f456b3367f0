"""Slurm starts the ranks without torchrun: `srun python train.py`, and submitit. Same weights as `frog run`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from harness import Harness, set_words, wait_until
from slurm_harness import RealSlurm

from frog.core.runs.event_schema import Beat, StartEvent
from frog.core.runs.heartbeat import read_heartbeat

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
STEPS = 200
SETTINGS = (f"train.steps={STEPS}", "checkpoint.every=5000", "eval.every=5000")
HOME = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
"""Without root or user namespaces, names of simulated nodes do not resolve."""


@pytest.fixture(scope="module")
def floor(harness: Harness) -> Harness:
    """Return the harness with the started programs, and the reference run."""
    shutil.copy(ROOT / "train.py", harness.root)
    harness.train(2, "slurm-calm", *SETTINGS)
    return harness


def words(name: str) -> list[str]:
    return ["run.toml", *set_words(f"name={name}", *SETTINGS)]


def same_weights(floor: Harness, name: str) -> None:
    for key in ("weights_sha256", "order_sha256", "step"):
        assert floor.record(name)[key] == floor.record("slurm-calm")[key]
    assert [floor.events(name).ranks[rank].of(StartEvent)[0].node_rank for rank in (0, 1)] == [0, 1]


def test_srun_tasks_become_ranks(floor: Harness, real_slurm: RealSlurm) -> None:
    start = ("srun", "--nodes=2", "--ntasks=2", "--kill-on-bad-exit=1", "python", "train.py")
    floor.run(*start, *words("by-srun"), env={**real_slurm.env, **HOME})
    same_weights(floor, "by-srun")


def test_python_in_a_batch_script_has_world_size_1(real_slurm: RealSlurm, tmp_path: Path) -> None:
    ask = "from frog.core.env import world_env; env = world_env(); print(env.world_size, env.launched)"
    out = tmp_path / "out"
    line = f'python -c "{ask}"; srun --nodes=1 --ntasks=1 python -c "{ask}"'
    job = real_slurm.ask("sbatch", "--parsable", "--nodes=2", "--ntasks=4", f"--output={out}", "--wrap", line).strip()
    real_slurm.wait_for(job, "COMPLETED")
    assert out.read_text().splitlines() == ["1 False", "1 False"]


def test_submitit_job_is_requeued_after_warning(floor: Harness, real_slurm: RealSlurm) -> None:
    if importlib.util.find_spec("submitit") is None:
        pytest.skip("submitit is not installed: pip install submitit")
    env = {**real_slurm.env, **HOME}
    page = str(ROOT / "scripts" / "submit_with_submitit.py")
    size = ("--cluster", "slurm", "--nodes", "2", "--tasks-per-node", "1")
    output = floor.run("python", page, *size, *words("by-submitit"), env=env).stdout
    job = re.findall(r"^job (\d+): 2 ranks", output, re.MULTILINE)[0]
    folder = floor.folder("by-submitit")

    beats: list[Beat] = []

    def has_begun() -> bool:
        beats[:] = [beat] if (beat := read_heartbeat(folder.heartbeat(1))) else []
        return bool(beats) and beats[0].step >= 3

    wait_until(has_begun, "step 3")
    stopped = beats[0].pid
    os.kill(stopped, signal.SIGSTOP)  # the run must not end before the signal arrives
    try:
        real_slurm.ask("scancel", "--signal=USR2", job)  # like --signal=USR2@60 a minute before the limit
    finally:
        os.kill(stopped, signal.SIGCONT)
    done = real_slurm.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", limit_s=510)
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "1")
    _, second = folder.read_run_json().segments
    assert 3 <= second.from_step < STEPS
    same_weights(floor, "by-submitit")

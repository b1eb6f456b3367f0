"""config/slurm_example.sbatch on a real Slurm, two nodes of two ranks: it behaves as its comments say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from harness import Harness, wait_until
from slurm_harness import RealSlurm

from frog.core.runs.folder import RunFolder
from frog.core.runs.heartbeat import read_heartbeat

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
EXAMPLE = "config/slurm_example.sbatch"
RANKS = 4
STEPS = 200


@dataclass
class Bench:
    """A project folder from which the test submits the example job."""

    harness: Harness
    slurm: RealSlurm

    def submit(self, *words: str, options: tuple[str, ...] = ()) -> str:
        """Submit the example for 2 x 2 ranks, with a quarter of each node's CPUs; return the job id."""
        size = ("--gpus-per-node=2", "--cpus-per-task=8")
        return self.slurm.ask("sbatch", "--parsable", *size, *options, EXAMPLE, *words, cwd=self.harness.root).strip()

    def folder(self, job_id: str) -> RunFolder:
        return self.harness.folder(f"frog-{job_id}")

    def record(self, job_id: str) -> dict[str, Any]:
        return self.harness.record(f"frog-{job_id}")

    def log(self, job_id: str, node: int | None = None) -> str:
        """Return the output of the job's script, or of one node's workers."""
        suffix = "" if node is None else f"-node{node}"
        path = self.harness.root / f"slurm-{job_id}{suffix}.out"
        return path.read_text() if path.exists() else ""

    def beat(self, job_id: str, rank: int) -> dict[str, Any]:
        found = read_heartbeat(self.folder(job_id).heartbeat(rank))
        return msgspec.to_builtins(found) if found else {"step": 0, "pid": None}

    def wait_for_step(self, job_id: str, step: int, rank: int = 0) -> None:
        wait_until(lambda: self.beat(job_id, rank)["step"] >= step or self.is_over(job_id), f"step {step}")
        assert not self.is_over(job_id), self.log(job_id) + self.log(job_id, 0) + self.log(job_id, 1)

    def is_over(self, job_id: str) -> bool:
        return self.slurm.job(job_id)["JobState"] in ("COMPLETED", "FAILED", "TIMEOUT")

    def processes(self, job_id: str) -> list[str]:
        """Return the command lines of all live processes of the job on this machine."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("SLURM_JOB_ID") == job_id and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def bench(harness: Harness, real_slurm: RealSlurm) -> Bench:
    root = harness.root
    (root / "config").mkdir(exist_ok=True)
    shutil.copy(ROOT / EXAMPLE, root / EXAMPLE)
    shutil.copy(ROOT / "train.py", root)
    shutil.copy(root / "run.toml", root / "config" / "demo.toml")  # the example's default run file
    shutil.copy(root / "config.json", root / "config")
    if not (root / ".venv").exists():
        (root / ".venv").symlink_to(sys.prefix)
    return Bench(harness, real_slurm)


@pytest.fixture(scope="module")
def calm_and_requeued(bench: Bench) -> tuple[str, str]:
    """Return two completed jobs of the same training: one undisturbed, one that reached its time limit.

    Steps of 10 ms are too short for a signal to arrive at a known step, so the test stops one rank of the second job
    until Slurm has sent its signal, like a node that hangs for a while.
    """
    words = ("--set", f"train.steps={STEPS}", "--set", "train.timeout_s=600")
    hasty = bench.submit(*words)
    bench.wait_for_step(hasty, 20, rank=1)
    stopped = bench.beat(hasty, 1)["pid"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        bench.slurm.ask("scontrol", "update", f"JobId={hasty}", "EndTime=now+75seconds")
        calm = bench.submit("config/demo.toml", *words)
        wait_until(lambda: "limit is near" in bench.log(hasty), "Slurm's signal")
        bench.slurm.ask("scontrol", "update", f"JobId={hasty}", "TimeLimit=30")  # once is enough
    finally:
        os.kill(stopped, signal.SIGCONT)
    for job_id in (calm, hasty):
        job = bench.slurm.wait_for(job_id, "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", limit_s=510)
        assert job["JobState"] == "COMPLETED", bench.log(job_id) + bench.log(job_id, 0) + bench.log(job_id, 1)
    return calm, hasty


@pytest.mark.timeout(1800)
def test_example_job_log_shows_allocation_workers_and_cleanup(bench: Bench, calm_and_requeued: tuple[str, str]) -> None:
    calm, _ = calm_and_requeued
    lines = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in bench.log(calm).splitlines()]
    assert lines == [
        f"allocation: job {calm}, start 0, on node[1-2]: 2 nodes x 2 ranks, rendezvous at "
        f"127.0.0.1:{10000 + int(calm) % 20000}",
        f"workers: srun starts torchrun on every node; see slurm-{calm}-node0.out and runs/frog-{calm}/logs/",
        "cleanup: the workers exited with code 0",
    ]
    assert f"done: {STEPS} steps" in bench.log(calm, 0)
    assert bench.slurm.job(calm)["ExitCode"] == "0:0"
    for rank in range(RANKS):
        assert f"rank {rank} |" in bench.folder(calm).rank_log(rank).read_text()
        beat = bench.beat(calm, rank)
        assert (beat["host"], beat["node_rank"]) == (f"node{1 + rank // 2}", rank // 2)


def test_job_at_its_time_limit_is_requeued_and_reaches_the_same_weights(
    bench: Bench, calm_and_requeued: tuple[str, str]
) -> None:
    calm, hasty = calm_and_requeued
    job, log = bench.slurm.job(hasty), bench.log(hasty)
    assert int(job["Restarts"]) >= 1
    assert log.index("signal: the time limit is near") < log.index("cleanup: ") < log.index("requeue: ")
    assert log.index("requeue: ") < log.index("start 1,")
    stops = [int(step) for step in re.findall(r"stopped at step (\d+), saved at step \1;", bench.log(hasty, 0))]
    begun = [segment.from_step for segment in bench.folder(hasty).read_run_json().segments]
    assert any(0 < step < STEPS for step in stops), bench.log(hasty, 0)
    assert begun[: len(stops) + 1] == [0, *stops], "each start resumes at the step where the previous one stopped"
    assert all(step == STEPS for step in begun[len(stops) + 1 :]), "the signal arrived after the last step"

    one, other = bench.record(calm), bench.record(hasty)
    assert one["status"] == other["status"] == "completed"
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["order_sha256"] == other["order_sha256"]


@pytest.mark.timeout(1800)
def test_cancelled_job_saves_and_job_with_killed_rank_fails(bench: Bench) -> None:
    """Run both jobs on the same nodes: cancel one, and kill a rank of the other."""
    words = ("--set", "train.steps=100000", "--set", "eval.every=100000")
    cancelled, broken = bench.submit(*words), bench.submit(*words)
    bench.wait_for_step(cancelled, 5)
    bench.slurm.ask("scancel", cancelled)
    bench.wait_for_step(broken, 5)
    os.kill(bench.beat(broken, 2)["pid"], signal.SIGKILL)

    # scancel: all ranks save and exit, and a smaller world resumes the run.
    bench.slurm.wait_for(cancelled, "CANCELLED")
    wait_until(lambda: not bench.processes(cancelled), "the end of the cancelled job's processes")
    log = bench.log(cancelled)
    assert log.index("signal: Slurm ends this job") < log.index("cleanup: ")
    assert "requeue:" not in log
    stopped = bench.record(cancelled)
    assert stopped["status"] == "interrupted"
    assert stopped["step"] >= 5
    run = f"frog-{cancelled}"
    bench.harness.run("frog", "train", "--resume", run, "--set", f"train.steps={stopped['step'] + 2}")
    assert bench.record(cancelled)["step"] == stopped["step"] + 2
    assert bench.folder(cancelled).read_run_json().segments[-1].from_step == stopped["step"]

    # The killed rank: the job fails with torchrun's code, is not requeued, and the other node's ranks end too.
    job = bench.slurm.wait_for(broken, "FAILED")
    assert (job["ExitCode"], job["Restarts"]) == ("1:0", "0")
    wait_until(lambda: not bench.processes(broken), "the end of the broken job's processes")
    assert "cleanup: the workers exited with code 1" in bench.log(broken)
    assert "Signal 9 (SIGKILL)" in bench.log(broken, 1), "rank 2 is the first of node 1"


def test_mistake_in_arguments_fails_the_job_and_only_rank_0_reports_it(bench: Bench) -> None:
    job_id = bench.submit("--set", "train.stepz=5", options=("--gpus-per-node=1",))
    job = bench.slurm.wait_for(job_id, "FAILED")
    assert job["ExitCode"] == "1:0"
    output = bench.log(job_id, 0) + bench.log(job_id, 1)
    assert output.count("[rank 0]   - train.stepz: unknown key") == 1
    assert "[rank 1]" not in output
    assert "exitcode  : 2" in output, "torchrun's report has the rank's exit code"
    assert not bench.folder(job_id).path.exists()


def test_example_job_without_gpus_names_the_missing_option(bench: Bench) -> None:
    job_id = bench.submit(options=("--gpus-per-node=0",))
    assert bench.slurm.wait_for(job_id, "FAILED")["ExitCode"] == "1:0"
    assert "this job has no GPUs: ask for --gpus-per-node" in bench.log(job_id)


def test_example_job_passes_shellcheck() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    done = subprocess.run(["shellcheck", "--severity=warning", ROOT / EXAMPLE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    directives = [line for line in (ROOT / EXAMPLE).read_text().splitlines() if line.startswith("#SBATCH")]
    assert len(directives) == 10

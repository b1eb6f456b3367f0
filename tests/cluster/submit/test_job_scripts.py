"""The example and the job file of `frog submit`: same lines, same reactions to signals, exit codes and few CPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import LIMIT_S, MODEL, RUN_FILE

from frog.cluster.jobfile.cluster_profile import load_profile
from frog.cluster.submit.slurm_job import SlurmRequest, render_job
from frog.core.config import load_run_config

ROOT = Path(__file__).parents[3]
EXAMPLE = (ROOT / "config" / "slurm_example.sbatch").read_text()

OTHERWISE = (
    "[[ ${1:-} == *.toml ]] ||",  # the example takes a run file as an argument
    "RANKS_PER_NODE=",
    "export RANKS_PER_NODE",
    'say "workers:',
    "srun ",
    "bash -c '",
    "exec .venv/bin/torchrun",
    "--shutdown-timeout=",
    "train.py ",
)
"""Beginnings of the example's lines that differ in a rendered file."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("project")
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "run.toml").write_text(RUN_FILE)
    profile = load_profile("generic", ROOT / "config" / "clusters")
    return render_job(SlurmRequest(load_run_config(folder / "run.toml"), Path("run.toml"), profile, nodes=2))


def commands(text: str) -> list[str]:
    """Return the lines of a script that are commands."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_rendered_job_file_has_the_lines_of_the_example_in_order(rendered: str) -> None:
    ours = iter(commands(rendered))
    missing = [line for line in commands(EXAMPLE) if not line.startswith(OTHERWISE) and line not in ours]
    assert missing == []
    assert all(any(line.startswith(begin) for line in commands(EXAMPLE)) for begin in OTHERWISE)


def test_rendered_job_file_has_the_directives_of_the_example(rendered: str) -> None:
    example, ours = (set(re.findall(r"^#SBATCH (--[\w-]+)", text, re.MULTILINE)) for text in (EXAMPLE, rendered))
    assert example <= ours


class JobScript:
    """A folder in which a job file runs as on a cluster's first node, with an srun that the test writes."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        (folder / "job.sbatch").write_text(text)
        (folder / "run.toml").touch()
        self.program("python", "true", place=".venv/bin")
        self.program("scancel", 'echo "scancel $*" >> asked; exit 1')  # the controller does not answer
        self.program("scontrol", 'echo "scontrol $*" >> asked; echo " NodeAddr=127.0.0.1 "')

    def program(self, name: str, body: str, place: str = "bin") -> None:
        path = self.folder / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run(self, srun: str) -> subprocess.CompletedProcess[str]:
        """Run the job file; `srun` is the command of its srun, a child of the script. It runs once the script waits."""
        waits = "until [[ $(ps -o state= -p $PPID) = S* ]]; do :; done"  # nothing else lets the script sleep
        self.program("srun", f"{waits}; {srun}")
        variables = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node1",
            "SLURM_NNODES": "1",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_CPUS_PER_TASK": "2",
        }
        env = {name: text for name, text in os.environ.items() if name != "OMP_NUM_THREADS"} | variables
        words = ["bash", "job.sbatch"]
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)

    @property
    def asked(self) -> str:
        """Calls of Slurm's commands."""
        return (self.folder / "asked").read_text()


@pytest.fixture(params=["example", "rendered"])
def job_script(request: pytest.FixtureRequest, rendered: str, tmp_path: Path) -> JobScript:
    return JobScript(tmp_path, EXAMPLE if request.param == "example" else rendered)


def test_failing_scancel_does_not_end_the_job(job_script: JobScript) -> None:
    done = job_script.run("kill -USR1 $PPID; until grep -q scancel asked; do sleep 0.01; done; exit 143")
    assert "scancel --signal=TERM 7" in job_script.asked
    assert "cleanup: the workers exited with code 143" in done.stdout
    assert "requeue 7" in job_script.asked


def test_exit_code_survives_a_signal_that_arrives_at_the_end(job_script: JobScript) -> None:
    ends = "until [[ $(ps -o state= -p $(< number)) != [DRS]* ]]; do :; done"
    job_script.program("scancel", f"touch answering; {ends}")
    done = job_script.run("echo $$ > number; kill -USR1 $PPID; until [[ -e answering ]]; do sleep 0.01; done; exit 3")
    assert "cleanup: the workers exited with code 3" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize(("code", "reason"), [(143, 1), (137, 1), (5, 5)])
def test_exit_code_of_a_node_killed_by_srun_is_replaced(code: int, reason: int, job_script: JobScript) -> None:
    assert job_script.run(f"exit {code}").returncode == reason


def test_each_rank_gets_at_least_one_thread(job_script: JobScript) -> None:
    job_script.run('echo "$OMP_NUM_THREADS" > threads')
    assert (job_script.folder / "threads").read_text() == "1\n"

"""The example and what `frog submit` renders: the same lines, and the same answers to signals, codes and few CPUs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from harness import MODEL, RUN_FILE

from frog.cluster.jobfile.cluster import load_profile
from frog.cluster.submit.slurm_job import SlurmRequest, render_job
from frog.config import load_run_config

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
"""How the example's lines begin that are other ones in a rendered file."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("project")
    (folder / "config.json").write_text(json.dumps(MODEL))
    (folder / "run.toml").write_text(RUN_FILE)
    profile = load_profile("generic", ROOT / "config" / "clusters")
    return render_job(SlurmRequest(load_run_config(folder / "run.toml"), Path("run.toml"), profile, nodes=2))


def commands(text: str) -> list[str]:
    """The lines of a script that do something."""
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_a_rendered_file_has_the_lines_of_the_example_in_their_order(rendered: str) -> None:
    ours = iter(commands(rendered))
    missing = [line for line in commands(EXAMPLE) if not line.startswith(OTHERWISE) and line not in ours]
    assert missing == []
    assert all(any(line.startswith(begin) for line in commands(EXAMPLE)) for begin in OTHERWISE)


def test_a_rendered_file_asks_for_what_the_example_asks_for(rendered: str) -> None:
    example, ours = (set(re.findall(r"^#SBATCH (--[\w-]+)", text, re.MULTILINE)) for text in (EXAMPLE, rendered))
    assert example <= ours


class JobScript:
    """A folder in which a job file runs as on a cluster's first node, with a srun that the test writes."""

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
        """Run the file; `srun` is what its srun does, whose parent is the script, once that waits."""
        self.program("srun", f"sleep 0.2; {srun}")
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
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=30)

    @property
    def asked(self) -> str:
        """What was asked of Slurm."""
        return (self.folder / "asked").read_text()


@pytest.fixture(params=["example", "rendered"])
def job_script(request: pytest.FixtureRequest, rendered: str, tmp_path: Path) -> JobScript:
    return JobScript(tmp_path, EXAMPLE if request.param == "example" else rendered)


def test_a_scancel_that_fails_does_not_end_the_job(job_script: JobScript) -> None:
    done = job_script.run("kill -USR1 $PPID; until grep -q scancel asked; do sleep 0.01; done; exit 143")
    assert "scancel --signal=TERM 7" in job_script.asked
    assert "cleanup: the workers exited with code 143" in done.stdout
    assert "requeue 7" in job_script.asked


def test_workers_that_end_while_a_signal_is_answered_keep_their_code(job_script: JobScript) -> None:
    job_script.program("scancel", "touch answering; sleep 0.3")
    done = job_script.run("kill -USR1 $PPID; until [[ -e answering ]]; do sleep 0.01; done; exit 3")
    assert "cleanup: the workers exited with code 3" in done.stdout
    assert done.returncode == 3


@pytest.mark.parametrize(("code", "reason"), [(143, 1), (137, 1), (5, 5)])
def test_the_code_of_a_node_that_srun_killed_is_not_the_reason(code: int, reason: int, job_script: JobScript) -> None:
    assert job_script.run(f"exit {code}").returncode == reason


def test_every_rank_has_a_thread(job_script: JobScript) -> None:
    job_script.run('echo "$OMP_NUM_THREADS" > threads')
    assert (job_script.folder / "threads").read_text() == "1\n"

"""Shared helpers of the tests with a real Slurm: start it and query it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import LIMIT_S, wait_until

from frog.cluster.slurm.slurm_programs import missing_programs

BIN = Path(sys.executable).parent
FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL")
NODES, GPUS_PER_NODE, CPUS_PER_NODE = 2, 4, 64


@dataclass
class RealSlurm:
    """A cluster that `frog slurm up` started."""

    folder: Path
    env: dict[str, str]
    """Return this process's environment with the variables that `frog slurm env` prints."""
    nodes: int = NODES
    gpus_per_node: int = GPUS_PER_NODE

    def ask(self, *words: str, cwd: Path | None = None, limit_s: float = LIMIT_S) -> str:
        """Return the output of a command, which must succeed."""
        done = subprocess.run(words, cwd=cwd, env=self.env, capture_output=True, text=True, timeout=limit_s)
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def job(self, job_id: str) -> dict[str, str]:
        """Return Slurm's data about a job: JobState, ExitCode, Restarts and others."""
        words = self.ask("scontrol", "--oneliner", "show", "job", job_id).split()
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def wait_for(self, job_id: str, *states: str, limit_s: float = LIMIT_S) -> dict[str, str]:
        """Wait until a job is in one of the states; fail as soon as it ends in another."""
        looks: list[dict[str, str]] = []

        def is_in_one() -> bool:
            looks[:] = [self.job(job_id)]
            state = looks[0]["JobState"]
            assert state in states or state not in FINAL, f"job {job_id} is not {' or '.join(states)}: {looks[0]}"
            return state in states

        wait_until(is_in_one, f"job {job_id} to be {' or '.join(states)}", limit_s=limit_s, seen=lambda: looks)
        return looks[0]


def frog_slurm(*words: str, cwd: Path, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run `frog slurm ...`; return its output, including errors."""
    done = subprocess.run(
        [str(BIN / "frog"), "slurm", *words],
        cwd=cwd,
        env=env or dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == code, f"frog slurm {words}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def need_slurm() -> None:
    """Skip the test if a real Slurm cannot run here."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)} not found): apt-get install slurm-wlm")

"""Simulated GPUs in jobs: a program for CUDA sees the GPUs that Slurm gives to its job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import LIMIT_S
from slurm_harness import frog_slurm

PROGRAM = r"""
import os, torch

def write(line):  # in one call: tasks share a file, and with PYTHONUNBUFFERED print writes the newline separately
    os.write(1, f"{line}\n".encode())

found = torch.cuda.device_count()
write(f"task {os.environ['SLURM_PROCID']} {found} {torch.cuda.is_available()}")
if found:
    torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
    write(torch.ones(1).cuda().device)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("gpus")
    (place / "job.py").write_text(PROGRAM)
    frog_slurm("up", "--emulator", "--nodes", "1", "--gpus-per-node", "2", "--cpus-per-node", "4", cwd=place)
    yield place
    frog_slurm("down", cwd=place)


def submit(folder: Path, *options: str) -> list[str]:
    """Run the program in a job, in a shell that `frog slurm env --simulate-gpus` prepared; return its sorted lines."""
    lines = frog_slurm("env", "--simulate-gpus", cwd=folder)
    job = f'eval "$LINES_OF_ENV"; sbatch --wait --output=out {" ".join(options)} --wrap "srun {sys.executable} job.py"'
    env = {**os.environ, "LINES_OF_ENV": lines}
    done = subprocess.run(["bash", "-c", job], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    said = (folder / "out").read_text()
    assert done.returncode == 0, done.stderr + said
    return sorted(said.splitlines())


@pytest.mark.slow
def test_tasks_see_the_gpus_of_their_job(folder: Path) -> None:
    lines = submit(folder, "--ntasks=2", "--gres=gpu:2")
    assert lines == ["cuda:0", "cuda:1", "task 0 2 True", "task 1 2 True"]


@pytest.mark.slow
def test_job_without_gpus_sees_none(folder: Path) -> None:
    assert submit(folder, "--ntasks=1") == ["task 0 0 False"]

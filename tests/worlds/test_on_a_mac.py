"""Frog's commands work where its modules see a Mac: another `sys.platform`, no /proc, none of Linux's own calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import LIMIT_S, Harness

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
AS_A_MAC = str(ROOT / "tests" / "as_a_mac")
HANG = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 0:
    dist.all_reduce(x)
else:
    time.sleep(600)
"""


class Mac(Harness):
    """A harness whose commands see a Mac."""

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        env = {"PYTHONPATH": AS_A_MAC, **options.pop("env", {})}
        return super().run(*words, **{**options, "warm": False, "env": env})


@pytest.fixture(scope="module")
def mac(harness: Harness) -> Mac:
    mac = Mac(harness.root)
    mac.run("frog", "run", "--nproc", "2", "--", "train", "run.toml", "--set", "name=first", limit_s=900)
    return mac


def test_modules_of_frog_see_a_mac_and_others_do_not() -> None:
    code = """
import os, sys
from frog.core import env
def seen(code):
    exec(compile(code, "x", "exec"), vars(env))
seen("import sys, os, signal; assert sys.platform == 'darwin'; assert not hasattr(os, 'sched_getaffinity')")
seen("from pathlib import Path; assert not Path('/proc/self').exists() and not os.access('/dev/shm', os.R_OK)")
assert sys.platform == "linux" and os.path.exists("/proc/self")
"""
    env = {**os.environ, "PYTHONPATH": AS_A_MAC}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=LIMIT_S)


def test_doctor_finds_all_labs_runnable(mac: Mac) -> None:
    text = mac.run("frog", "doctor").stdout
    assert [f"lab {lab}" for lab in range(1, 7) if f"\nlab {lab}, " not in text] == []
    assert "does not run" not in text


def test_run_is_read_by_every_view(mac: Mac) -> None:
    assert "first" in mac.run("frog", "runs").stdout
    mac.run("frog", "report", "first")
    mac.run("frog", "logs", "first")
    assert "healthy" in mac.run("frog", "diagnose", "first").stdout
    mac.run("frog", "run", "--nodes", "2x1", "--", "train", "run.toml", "--set", "name=second", limit_s=900)
    assert "bitwise equal" in mac.run("frog", "compare", "first", "second").stdout


def test_killed_run_recovers(mac: Mac) -> None:
    words = ("--nproc", "2", "--restarts", "1", "--", "train", "run.toml", "--set", "name=killed")
    mac.run("frog", "chaos", "--fault", "kill rank=1 step=5 phase=backward", *words, limit_s=900)
    assert mac.record("killed")["weights_sha256"] == mac.record("first")["weights_sha256"]


def test_hang_of_a_program_is_noticed_and_diagnosed(mac: Mac) -> None:
    (mac.root / "hang.py").write_text(HANG)
    mac.run("frog", "run", "--nproc", "2", "--deadline", "5", "--", "hang.py", code=137, limit_s=900)
    text = mac.run("frog", "diagnose", "latest").stdout
    assert "hang.py:7" in text
    assert "rank 1" in text


def test_exercise_is_checked(mac: Mac) -> None:
    mac.run("frog", "learn", "init", "course")
    (own,) = mac.root.glob("course/**/01_average_gradients/step.py")
    shutil.copy(ROOT / "labs/lab2/01_average_gradients/reference/step.py", own)
    course = Mac(mac.root / "course")
    done = course.run("frog", "learn", "check", "2.1", limit_s=900)
    assert "lab 2.1" in done.stdout


def test_emulated_slurm_runs_a_job(mac: Mac) -> None:
    (mac.root / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun bash -c 'echo task $SLURM_PROCID'\n")
    mac.run("frog", "slurm", "up", "--emulator")
    try:
        mac.run("bash", "-c", 'eval "$(frog slurm env)"; sbatch --wait job.sh')
    finally:
        mac.run("frog", "slurm", "down")
    (out,) = mac.root.glob("slurm-*.out")
    assert sorted(out.read_text().split("\n")) == ["", "task 0", "task 1"]


@pytest.mark.parametrize("script", ["ddp_simulation_train.py", "fake_multi_node_launcher.py"])
def test_tutorial_script_ends_without_an_error(mac: Mac, script: str) -> None:
    mac.run(sys.executable, str(ROOT / "scripts" / script), "--help")

"""Lab 3's repaired job files do under a real Slurm what their check accepts under the emulator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from slurm_harness import RealSlurm

from frog.grader.exercise import find_exercise

pytestmark = pytest.mark.slow


def submit(real_slurm: RealSlurm, folder: Path, name: str) -> str:
    return real_slurm.ask("sbatch", "--parsable", "--cpus-per-task=1", name, cwd=folder).strip()


def noted(folder: Path, job_id: str) -> list[tuple[str, object]]:
    """What the job's ranks noted of themselves."""
    lines = (folder / "notes" / f"{job_id}.jsonl").read_text().splitlines()
    return [(what, value) for _, _, what, value in map(json.loads, lines)]


def test_the_repaired_files_do_the_same_under_a_real_slurm(real_slurm: RealSlurm, tmp_path: Path) -> None:
    for exercise in ("3.5", "3.6"):
        shutil.copytree(find_exercise(exercise).folder / "reference", tmp_path / exercise)
    starting = [submit(real_slurm, tmp_path / "3.5", path.name) for path in sorted((tmp_path / "3.5").glob("*.sbatch"))]
    failing = submit(real_slurm, tmp_path / "3.6", "exit.sbatch")
    for job_id in starting:
        real_slurm.wait_for(job_id, "COMPLETED")
        met = [value for what, value in noted(tmp_path / "3.5", job_id) if what == "met"]
        assert met == [[0, 1, 2, 3]] * 4
    real_slurm.wait_for(failing, "FAILED")
    assert "waited" not in dict(noted(tmp_path / "3.6", failing))

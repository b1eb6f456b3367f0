"""Every benchmark runs: in miniature here, so that its figures can be taken again on any day."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
RUN = [sys.executable, str(FOLDER / "run.py")]


def names() -> list[str]:
    """Those that `run.py` has."""
    listed = subprocess.run([*RUN, "--list"], capture_output=True, text=True, check=True, timeout=120)
    return listed.stdout.split()


def test_every_program_is_listed() -> None:
    programs = {path.name for path in FOLDER.glob("*.py") if "def main(" in path.read_text()} - {"run.py"}
    text = (FOLDER / "run.py").read_text()
    assert [program for program in sorted(programs) if f'"{program}"' not in text] == []


def test_every_result_is_of_a_benchmark() -> None:
    results = {path.stem for path in (FOLDER / "results").glob("*.txt")} - {"tests"}
    assert results <= set(names())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_run_in_miniature() -> None:
    before = {path: path.read_bytes() for path in (FOLDER / "results").iterdir()}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    failed = {}
    for name in names():
        if name.startswith("chaos_") and name != "chaos_cut":
            continue  # the same program with other campaigns
        done = subprocess.run([*RUN, "--tiny", name], env=env, capture_output=True, text=True, timeout=300)
        if done.returncode or "commit" not in done.stdout.splitlines()[1]:
            failed[name] = done.stdout + done.stderr
    assert failed == {}
    assert {path: path.read_bytes() for path in (FOLDER / "results").iterdir()} == before

"""Every benchmark runs: in miniature here, so that its figures can be taken again on any day."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
RUN = [sys.executable, str(FOLDER / "run.py")]


PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if "def main(" in path.read_text() and path.stem != "run")


@functools.cache
def listed() -> dict[str, str]:
    """The benchmarks that `run.py` has, each with its program."""
    done = subprocess.run([*RUN, "--list"], capture_output=True, text=True, check=True, timeout=120)
    return dict(line.split() for line in done.stdout.splitlines())


def test_every_program_is_listed_and_every_result_is_of_one() -> None:
    benchmarks = listed()
    assert sorted(set(benchmarks.values())) == PROGRAMS
    assert {path.stem for path in (FOLDER / "results").glob("*.txt")} - {"tests"} <= benchmarks.keys()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("script", PROGRAMS)
def test_it_runs_in_miniature(script: str) -> None:
    name = next(name for name, its in listed().items() if its == script)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*RUN, "--tiny", name], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("commit ")

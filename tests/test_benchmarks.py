"""Every benchmark runs in miniature, so that its numbers can be reproduced at any time."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, wait_until
from warm_frog import warm_env

from frog.core.processes import is_alive

FOLDER = Path(__file__).parents[1] / "benchmarks"
RUN = [sys.executable, str(FOLDER / "run.py")]


PROGRAMS = sorted(path.name for path in FOLDER.glob("*.py") if "def main(" in path.read_text() and path.stem != "run")


@functools.cache
def listed() -> dict[str, str]:
    """Return the benchmarks listed in `run.py`, each with its program."""
    done = subprocess.run([*RUN, "--list"], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return dict(line.split() for line in done.stdout.splitlines())


def test_every_benchmark_is_listed_and_every_result_has_one() -> None:
    benchmarks = listed()
    assert sorted(set(benchmarks.values())) == PROGRAMS
    assert {path.stem for path in (FOLDER / "results").glob("*.txt")} - {"tests"} <= benchmarks.keys()


def test_benchmark_processes_end_with_the_runner(tmp_path: Path) -> None:
    endless = "import subprocess; subprocess.run(['bash', '-c', 'sleep 600 & echo $$ $! ends; wait'])"
    (tmp_path / "endless.py").write_text(endless)
    program = (
        f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import run; "
        f"run.BENCHMARKS['endless'] = run.Benchmark({str(tmp_path / 'endless.py')!r}); "
        "sys.argv[1:] = ['--tiny', 'endless']; run.main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.endswith("ends\n"))
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    pids = [int(word) for word in line.split()[:2]]
    wait_until(lambda: not any(map(is_alive, pids)), "the end of the benchmark's processes")


@pytest.mark.slow
def test_plan_is_near_what_the_gpu_benchmark_measured() -> None:
    """No constant is fitted on these runs of an H100."""
    words = [sys.executable, str(FOLDER / "gpu.py"), "--plan", "H100-80GB"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=LIMIT_S, env=warm_env())
    rate = re.compile(r"^  ([\w ]+?) +([\d,]+) tokens/s", re.MULTILINE)
    planned = {name: float(text.replace(",", "")) for name, text in rate.findall(done.stdout)}
    _, _, means = (FOLDER / "results" / "gpu.txt").read_text().partition("Means")
    measured = {name: float(text.replace(",", "")) for name, text in rate.findall(means)}
    assert planned.keys() == measured.keys()
    for name, tokens_per_s in planned.items():
        assert tokens_per_s == pytest.approx(measured[name], rel=0.2), name


@pytest.mark.slow
@pytest.mark.benchmark_cases
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("script", PROGRAMS)
def test_benchmark_runs_in_miniature(script: str) -> None:
    name = next(name for name, its in listed().items() if its == script)
    env = {**os.environ, "OMP_NUM_THREADS": "1", **warm_env(nested=True)}
    done = subprocess.run([*RUN, "--tiny", name], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("commit ")

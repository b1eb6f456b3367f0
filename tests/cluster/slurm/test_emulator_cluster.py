"""The emulator as a user sees it: up, down, refusals, and no leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import LIMIT_S, wait_until

from frog.cluster.emulator import emulated_cluster as cluster
from frog.cluster.emulator import job_processes, wire
from frog.cluster.emulator.job_processes import find_marked
from frog.cluster.simulated_cluster import LOCK_FILE
from frog.core.errors import UsageError

STRAY = (
    "import os, signal, sys\n"
    "if os.fork(): os._exit(0)\n"
    "os.setsid()\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
    "signal.pause()\n"
)


def ask(folder: Path, *words: str, code: int = 0) -> str:
    """Return the output of one of the emulator's commands."""
    env = {**os.environ, **cluster.environment(folder)}
    done = subprocess.run(words, cwd=folder.parent, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def number_in(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().isdigit(), path.name)
    return int(path.read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "cluster"
    cluster.up(place, 2, 4, 8, kill_wait_s=1)
    try:
        yield place
    finally:
        if place.exists():
            cluster.down(place)


def test_emulator_starts_reports_its_status_and_stops(folder: Path) -> None:
    table = json.loads((folder / "cluster.json").read_text())
    assert ask(folder, "sinfo", "--noheader", "--format=%N %c %G %D") == "node[1-2] 8 gpu:4 2\n"
    assert "no jobs" in cluster.status_text(folder)
    with pytest.raises(UsageError, match="is already running"):
        cluster.up(folder, 1, 0, 1)
    ask(folder, "sbatch", "--nodes=2", "--wrap", "sleep 300")
    ask(folder, "sbatch", "--exclusive", "--job-name=later", "--wrap", "sleep 300")
    wait_until(lambda: "RUNNING" in cluster.status_text(folder), "the first job")
    assert "later  PENDING  1      (Resources)" in cluster.status_text(folder)
    cluster.down(folder)
    assert not folder.exists()
    assert not is_running(table["pid"])
    assert find_marked(table["cluster"]) == []
    with pytest.raises(UsageError, match="no Slurm emulator found"):
        cluster.down(folder)


def test_process_outside_its_group_ends_with_its_job(folder: Path) -> None:
    """A batch script, a step and a cancelled job each start a process in a separate session."""
    tmp = folder.parent
    start = f'{sys.executable} -c "{STRAY}"'
    ask(folder, "sbatch", "--wait", "--wrap", f"{start} script; while [ ! -s script ]; do sleep 0.1; done")
    script = number_in(tmp / "script")
    wait_until(lambda: not is_running(script), "the end of the batch script's stray process")
    ask(folder, "srun", "bash", "-c", f"{start} task > /dev/null 2>&1; while [ ! -s task ]; do sleep 0.1; done")
    task = number_in(tmp / "task")
    wait_until(lambda: not is_running(task), "the end of the step's stray process")
    job = ask(folder, "sbatch", "--parsable", "--wrap", f"{start} stopped; sleep 600").strip()
    pid = number_in(tmp / "stopped")
    assert is_running(pid)
    ask(folder, "scancel", job)
    wait_until(lambda: not is_running(pid), "the end of the cancelled job's stray process")


def test_killed_daemon_is_cleaned_up(folder: Path) -> None:
    ask(folder, "sbatch", "--wrap", f'{sys.executable} -c "{STRAY}" alone; sleep 300')
    pid = number_in(folder.parent / "alone")
    os.kill(json.loads((folder / "cluster.json").read_text())["pid"], signal.SIGKILL)
    wait_until(lambda: "does not answer" in cluster.status_text(folder), "the end of the daemon")
    assert "Unable to contact slurm controller" in ask(folder, "squeue", code=1)
    (folder / "mine.txt").write_text("mine")
    cluster.down(folder)
    assert not is_running(pid)
    assert os.listdir(folder) == ["mine.txt"]
    with pytest.raises(UsageError, match="has other files"):
        cluster.up(folder, 1, 0, 1)
    (folder / "mine.txt").unlink()
    folder.rmdir()


def test_unresponsive_daemon_is_reported_and_ended(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_ANSWER_S", 0.3)
    table = json.loads((folder / "cluster.json").read_text())
    os.kill(table["pid"], signal.SIGSTOP)
    assert "the emulator does not answer" in cluster.status_text(folder)
    cluster.down(folder)
    assert not is_running(table["pid"])
    assert not folder.exists()


def test_interrupted_emulator_up_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[str] = []

    def start_and_interrupt(*words: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
        if env is None:  # the probe of the nodes' names
            return started(*words, **options)
        marks.append(env[job_processes.MARK])
        started(*words, env=env, **options)
        assert find_marked(marks[0])
        raise KeyboardInterrupt

    started = subprocess.run
    monkeypatch.setattr(cluster.subprocess, "run", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        cluster.up(tmp_path / "cluster", 1, 0, 1)
    assert find_marked(marks[0]) == []
    assert os.listdir(tmp_path) == []


def test_emulator_starts_after_an_earlier_start_was_killed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bin/sbatch", "daemon.log", LOCK_FILE):
        (tmp_path / name).write_text("")
    cluster._make_room(tmp_path)
    (tmp_path / "bin" / "mine").write_text("")
    with pytest.raises(UsageError, match="has other files"):
        cluster._make_room(tmp_path)


def test_script_that_ignores_signals_is_killed(folder: Path) -> None:
    stubborn = "trap '' TERM; touch up; while true; do sleep 0.1; done"
    job = ask(folder, "sbatch", "--parsable", "--wrap", stubborn).strip()
    wait_until(lambda: (folder.parent / "up").exists(), "the job")
    ask(folder, "scancel", job)
    wait_until(lambda: "JobState=CANCELLED" in ask(folder, "scontrol", "show", "job", job), "the end of the job")
    assert "ExitCode=0:9" in ask(folder, "scontrol", "show", "job", job)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("sbatch --gpu-bind=closest --wrap true", "--gpu-bind=closest of sbatch"),
        ("sbatch --nodes=1-2 --wrap true", "--nodes=1-2"),
        ("sbatch --export=NONE --wrap true", "--export=NONE"),
        ("sbatch --output=%q.out --wrap true", "%q in the name '%q.out'"),
        ("sbatch --exclusive=user --wrap true", "--exclusive=user"),
        ("squeue --long", "--long of squeue"),
        ("squeue --format=%Q", "%Q in the format of squeue"),
        ("sinfo --summarize", "--summarize of sinfo"),
        ("scancel --interactive 1", "--interactive of scancel"),
        ("scontrol suspend 1", "scontrol suspend"),
        ("scontrol show partition", "scontrol show partition"),
        ("scontrol update JobId=1 Priority=1", "scontrol update JobId=1 Priority=1"),
    ],
)
def test_emulator_names_unsupported_feature(shared: Path, words: str, named: str) -> None:
    env = {**os.environ, **cluster.environment(shared)}
    done = subprocess.run(words.split(), env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode != 0
    assert f"the Slurm emulator does not support {named}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("shared") / "cluster"
    cluster.up(place, 1, 0, 2)
    yield place
    cluster.down(place)


def test_sbatch_variable_is_refused(shared: Path) -> None:
    env = {**os.environ, **cluster.environment(shared), "SBATCH_PARTITION": "main"}
    done = subprocess.run(["sbatch", "--wrap", "true"], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 255
    assert "does not support the variable SBATCH_PARTITION" in done.stderr


def test_daemon_refuses_requests_without_the_secret(shared: Path) -> None:
    table = json.loads((shared / "cluster.json").read_text())
    assert (shared / "cluster.json").stat().st_mode & 0o077 == 0
    (shared / "cluster.json").write_text(json.dumps({**table, "token": "other"}))
    try:
        assert "has ended" in ask(shared, "squeue", code=1)
    finally:
        (shared / "cluster.json").write_text(json.dumps(table))
    ask(shared, "squeue")


def test_marks_are_found_without_procfs(shared: Path) -> None:
    """Find marks by ps, as on macOS, but with this system's option to print the environment."""
    job = ask(shared, "sbatch", "--parsable", "--wrap", "exec sleep 300").strip()
    found: list[tuple[int, str]] = []

    def by_ps() -> bool:
        found[:] = [item for item in job_processes._marks_of_ps() if f"/{job}.0/" in item[1]]
        return bool(found)

    wait_until(by_ps, "the job's process in the output of ps")
    cluster_name = json.loads((shared / "cluster.json").read_text())["cluster"]
    assert {pid for pid, _ in found} == set(find_marked(f"{cluster_name}/{job}.0/"))
    ask(shared, "scancel", job)

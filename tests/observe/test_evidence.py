"""What the observer writes about a program, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import LIMIT_S, wait_until
from observe.programs import BEATS, PROGRAMS, run_command, run_program

from frog.core.runs.observed import Observed, observed_folder, read_observed, write_request
from frog.observe.environment import environment


def evidence(code: str, tmp_path: Path, *options: str, **changes: str) -> Observed:
    run_program(code, tmp_path / "run", tmp_path, *options, **changes)
    return read_observed(tmp_path / "run")[0][1]


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("ends", "ended"),
        ("raises", "failed"),
        ("exits_with_code", "ended"),
        ("exits_at_once", "running"),
        ("kills_itself", "running"),
        ("is_interrupted", "failed"),
        ("has_its_own_hook", "failed"),
    ],
)
def test_last_status_says_how_the_program_ended(name: str, state: str, tmp_path: Path) -> None:
    found = evidence(PROGRAMS[name], tmp_path)
    assert found.status is not None
    assert found.status.state == state
    assert (found.error is None) == (state != "failed")


def test_exception_is_recorded_with_its_line(tmp_path: Path) -> None:
    found = evidence("import json\ndef load():\n    return json.loads('{')\nload()", tmp_path)
    error = found.error
    assert error is not None
    assert error.line is not None
    assert (error.type, error.line.line, error.line.function, error.line.code) == (
        "json.decoder.JSONDecodeError",
        3,
        "load",
        "return json.loads('{')",
    )
    assert error.frames[-1].file.endswith("json/decoder.py")
    assert error.traceback.startswith("Traceback")
    assert error.message.startswith("Expecting property name")


def test_exception_of_a_thread_is_kept_when_the_program_fails_later(tmp_path: Path) -> None:
    code = PROGRAMS["thread_raises"] + "\nraise RuntimeError('no data')"
    error = evidence(code, tmp_path).error
    assert error is not None
    assert (error.type, error.thread) == ("RuntimeError", "MainThread")
    assert [(earlier.type, earlier.thread) for earlier in error.earlier] == [("ZeroDivisionError", "worker")]


def test_huge_exception_is_cut(tmp_path: Path) -> None:
    error = evidence("raise ValueError('x' * 10_000_000)", tmp_path).error
    assert error is not None
    assert (len(error.message), len(error.traceback)) == (4096, 16384)


@pytest.mark.parametrize("name", ["crashes", "overflows"])
def test_fatal_signal_leaves_the_stacks(name: str, tmp_path: Path) -> None:
    found = evidence(PROGRAMS[name], tmp_path)
    assert "Fatal Python error" in found.crash
    assert "program.py" in found.crash


def test_child_does_not_write_to_its_parents_folder(tmp_path: Path) -> None:
    found = evidence(PROGRAMS["starts_a_child"], tmp_path)
    assert found.status is not None
    assert found.status.state == "ended"
    assert found.error is None


def test_program_that_another_one_becomes_is_observed(tmp_path: Path) -> None:
    error = evidence(PROGRAMS["becomes_another_program"], tmp_path).error
    assert error is not None
    assert error.type == "ValueError"


def test_second_program_of_a_shell_script_is_observed(tmp_path: Path) -> None:
    python = sys.executable
    run_command(["sh", "-c", f"{python} -c 'print(1)'; {python} -c '1 / 0'"], tmp_path / "run", tmp_path)
    found = read_observed(tmp_path / "run")[0][1]
    assert found.error is not None
    assert found.error.type == "ZeroDivisionError"
    assert (found.folder / "earlier" / "status.json").exists()


def test_last_command_of_a_script_does_not_hide_the_program_with_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '9'\n")
    python = sys.executable
    script = f"{python} -c 'import torch; raise KeyError(1)'; {python} -c 'print(1)'"
    run_command(["sh", "-c", script], tmp_path / "run", tmp_path)
    found = read_observed(tmp_path / "run")[0][1]
    assert found.error is not None
    assert found.status is not None
    assert (found.error.type, found.status.torch, found.status.state) == ("KeyError", "9", "failed")


WAITER = """
import threading, time
from pathlib import Path
def inner():
    time.sleep(60)
threading.Thread(target=inner, name='loader', daemon=True).start()
Path('ready').touch()
while not Path('go').exists():
    time.sleep(0.01)
"""


def test_request_is_answered_with_the_stacks_of_all_threads(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (tmp_path / "program.py").write_text(WAITER)
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", **environment(run)}
    process = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path, env=env)
    try:
        wait_until((tmp_path / "ready").exists, "the program")
        number = write_request(run, "user")

        def answered() -> bool:
            status = read_observed(run)[0][1].status
            return status is not None and status.answered == number

        wait_until(answered, "the answer")
        stacks = read_observed(run)[0][1].stacks
        (tmp_path / "go").touch()
        assert process.wait(timeout=LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
    assert stacks is not None
    assert stacks.reason == "user"
    assert [(thread.name, thread.is_main) for thread in stacks.threads] == [("MainThread", True), ("loader", False)]
    inner = stacks.threads[1].frames[-1]
    assert (inner.function, inner.code) == ("inner", "time.sleep(60)")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13", "3.14"])
def test_hook_runs_in_other_versions_of_python(version: str, tmp_path: Path) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, timeout=LIMIT_S).returncode:
        pytest.skip(f"Python {version} is not installed")
    run = tmp_path / "run"
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", **environment(run)}
    forks = subprocess.run(
        [python, "-W", "error", "-c", PROGRAMS["forks"]], env=env, capture_output=True, timeout=LIMIT_S
    )
    assert (forks.returncode, forks.stdout.split()) == (0, [b"child", b"256"]), forks.stderr.decode()
    done = subprocess.run(
        [python, "-W", "error", "-c", PROGRAMS["raises"]], env=env, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 1
    found = read_observed(run)[0][0]
    assert found.error is not None
    assert found.status is not None
    assert (found.error.type, found.status.state) == ("ValueError", "failed")


def test_damaged_request_is_ignored(tmp_path: Path) -> None:
    path = observed_folder(tmp_path / "run") / "request.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"number": "many"}')
    found = evidence(BEATS, tmp_path)
    assert found.status is not None
    assert (found.status.state, found.stacks) == ("ended", None)


@pytest.mark.slow
def test_code_that_does_not_release_the_gil_is_seen(tmp_path: Path) -> None:
    """From the first line on: no beat of the observer has happened yet."""
    found = evidence("import ctypes\ndef hold():\n    ctypes.PyDLL(None).sleep(34)\nhold()", tmp_path)
    assert found.crash.startswith("Timeout (0:00:30)!")
    assert 'program.py", line 3 in hold' in found.crash

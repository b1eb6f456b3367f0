"""Programs under a deadline: some end, some must be killed, and some leave processes or files behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import all_gone, run_to_end, tree, wait_until

from frog.launch.harness import Program

HIDES = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
"""
STAYS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_finished_program_reports_exit_code_output_and_left_files(tmp_path: Path) -> None:
    code = "import os, sys, tempfile; print(os.environ['A']); tempfile.mkdtemp(prefix='mine-'); sys.exit(3)"
    with Program(python(code), tmp_path, {"A": "b"}) as program:
        assert program.wait(60) == 3
        assert program.all_gone(10)
    assert program.output == "b\n"
    (left,) = program.left_files()
    assert left.startswith("mine-")


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_program_that_ignores_sigterm_is_killed(tmp_path: Path, grace_s: float) -> None:
    with Program(python(STAYS), tmp_path) as program:
        wait_until(lambda: program.output == "up\n", "its first word")
        assert program.wait(0.1) is None
        assert not program.all_gone(0)
        program.end(grace_s)
        assert program.all_gone(10)
        assert program.wait(0) == -signal.SIGKILL


def test_program_ends_on_sigterm_within_the_grace_time(tmp_path: Path) -> None:
    with Program(python("print('up', flush=True); import time; time.sleep(600)"), tmp_path) as program:
        wait_until(lambda: program.output == "up\n", "its first word")
        assert os.getsid(program.process.pid) == program.process.pid  # Ctrl-C in the terminal does not reach it
        program.end(60)
        assert program.wait(0) == -signal.SIGTERM


def test_child_in_another_session_is_ended_too(tmp_path: Path) -> None:
    with Program(python(HIDES), tmp_path) as program:
        assert program.wait(60) == 0
        assert not program.all_gone(0.1)
        program.end()
        assert program.all_gone(10)


def test_program_that_cannot_start_leaves_no_pipe_open(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError):
        Program(["not-there"], tmp_path)
    assert os.listdir("/dev/fd") == before


def test_run_to_end_kills_the_whole_process_tree_at_the_deadline() -> None:
    waits = HIDES + "import time; time.sleep(600)"
    process = subprocess.Popen(python(waits), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(tree(process)) == 2, "its child", process)
    family = tree(process)
    with pytest.raises(AssertionError, match=r"no end within 0\.1 s"):
        run_to_end(process, 0.1)
    wait_until(lambda: all_gone(family), "the end of both")
    assert not psutil.pid_exists(process.pid)


def test_wait_until_timeout_reports_the_output_of_the_process() -> None:
    with pytest.raises(AssertionError, match=r"waiting for rain: not within 0 s; last seen: \[7\]"):
        wait_until(lambda: False, "rain", limit_s=0, seen=lambda: [7])
    process = subprocess.Popen(python("print('dry')"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match=r"(?s)waiting for rain: .* ended with 0; last seen: False\ndry"):
        wait_until(lambda: False, "rain", process)

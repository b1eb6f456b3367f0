"""A program that ends, one that does not, and one that leaves something behind."""

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


def test_one_that_ends(tmp_path: Path) -> None:
    code = "import os, sys, tempfile; print(os.environ['A']); tempfile.mkdtemp(prefix='mine-'); sys.exit(3)"
    with Program(python(code), tmp_path, {"A": "b"}) as program:
        assert program.wait(60) == 3
        assert program.all_gone(10)
    assert program.output == "b\n"
    (left,) = program.left_files()
    assert left.startswith("mine-")


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_one_that_does_not(tmp_path: Path, grace_s: float) -> None:
    with Program(python(STAYS), tmp_path) as program:
        wait_until(lambda: program.output == "up\n", 60, "its first word")
        assert program.wait(0.1) is None
        assert not program.all_gone(0)
        program.end(grace_s)
        assert program.all_gone(10)
        assert program.wait(0) == -signal.SIGKILL


def test_one_that_is_asked_and_leaves(tmp_path: Path) -> None:
    with Program(python("print('up', flush=True); import time; time.sleep(600)"), tmp_path) as program:
        wait_until(lambda: program.output == "up\n", 60, "its first word")
        program.end(60)
        assert program.wait(0) == -signal.SIGTERM


def test_one_that_leaves_a_process_in_a_session_of_its_own(tmp_path: Path) -> None:
    with Program(python(HIDES), tmp_path) as program:
        assert program.wait(60) == 0
        assert not program.all_gone(0.1)
        program.end()
        assert program.all_gone(10)


def test_what_cannot_be_started_leaves_no_pipe_open(tmp_path: Path) -> None:
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError):
        Program(["not-there"], tmp_path)
    assert os.listdir("/dev/fd") == before


def test_all_of_it_is_killed_at_the_deadline() -> None:
    waits = HIDES + "import time; time.sleep(600)"
    process = subprocess.Popen(python(waits), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(tree(process)) == 2, 60, "its child", process)
    family = tree(process)
    with pytest.raises(AssertionError, match=r"no end within 0\.3 s"):
        run_to_end(process, 0.1)
    wait_until(lambda: all_gone(family), 10, "the end of both")
    assert not psutil.pid_exists(process.pid)


def test_what_never_comes_is_told_with_what_was_written() -> None:
    with pytest.raises(AssertionError, match="waiting for rain: not within 0 s"):
        wait_until(lambda: False, 0, "rain")
    process = subprocess.Popen(python("print('dry')"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match=r"(?s)waiting for rain: .* ended with 0\ndry"):
        wait_until(lambda: False, 60, "rain", process)

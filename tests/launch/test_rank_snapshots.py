"""What the launcher sees of a rank: its status, and its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from core.runs.test_observed_files import STATUS
from harness import wait_until

from frog.core.runs.observed import Status
from frog.launch import watchdog
from frog.launch.watchdog import take_snapshot


def status(pid: int, **changes: Any) -> Status:
    return msgspec.convert({**STATUS, "pid": pid, **changes}, Status)


@pytest.fixture
def sleeper() -> Any:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", code], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_processor_time_of_children_is_seen(sleeper: subprocess.Popen[bytes]) -> None:
    def busy() -> bool:
        return (take_snapshot(status(sleeper.pid), with_children=True).children_cpu_s or 0) > 0.2

    wait_until(busy, "the child's processor time")
    assert take_snapshot(status(sleeper.pid), with_children=False).children_cpu_s is None


def test_stopped_process_is_seen(sleeper: subprocess.Popen[bytes]) -> None:
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: take_snapshot(status(sleeper.pid), with_children=False).stopped, "the stop")


def test_killed_process_has_ended_whatever_its_last_status(sleeper: subprocess.Popen[bytes]) -> None:
    assert not take_snapshot(status(sleeper.pid), with_children=True).ended
    os.killpg(sleeper.pid, signal.SIGKILL)
    wait_until(lambda: take_snapshot(status(sleeper.pid), with_children=True).ended, "the end")


def test_bytes_that_a_process_writes_are_seen() -> None:
    before = take_snapshot(status(os.getpid()), with_children=False)
    with open(os.devnull, "wb", buffering=0) as file:
        file.write(bytes(1_000_000))
    after = take_snapshot(status(os.getpid()), with_children=False)
    assert after.moved_bytes - before.moved_bytes >= 1_000_000


def test_rank_inside_torch_distributed_waits_without_a_pending_collective() -> None:
    place = {"file": "/x/site-packages/torch/distributed/distributed_c10d.py", "line": 1, "function": "recv"}
    groups = [{"group": "0", "enqueued": 3, "completed": 3}]
    seen = take_snapshot(status(os.getpid(), groups=groups, **{"in": place}), with_children=False)
    assert (seen.pending, seen.completed) == (True, 3)
    assert not take_snapshot(status(os.getpid(), groups=groups), with_children=False).pending


@pytest.mark.parametrize(("state", "failed"), [("ended", False), ("failed", True)])
def test_program_that_has_ended_is_seen_while_its_process_exists(state: str, failed: bool) -> None:
    seen = take_snapshot(status(os.getpid(), state=state), with_children=False)
    assert (seen.ended, seen.failed) == (True, failed)


class Process:
    """Stands for psutil's process: its state and times are the test's."""

    def __init__(self, state: str = "running", user: float = 1.0, *children: Process) -> None:
        self._state, self._user, self._children = state, user, [*children]

    def __call__(self, pid: int) -> Process:
        return self

    def status(self) -> str:
        return self._state

    def cpu_times(self) -> Any:
        if self._state == "gone":
            raise psutil.NoSuchProcess(1)
        return SimpleNamespace(user=self._user, system=0.25)

    def children(self, recursive: bool) -> list[Process]:
        assert recursive
        return self._children


@pytest.mark.parametrize(
    ("state", "ended", "stopped"),
    [
        (psutil.STATUS_RUNNING, False, False),
        (psutil.STATUS_SLEEPING, False, False),
        (psutil.STATUS_STOPPED, False, True),
        (psutil.STATUS_TRACING_STOP, False, True),
        (psutil.STATUS_ZOMBIE, True, False),
        ("gone", True, False),
    ],
)
def test_state_of_a_process_is_that_of_the_system(
    state: str, ended: bool, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(state, 3.0, Process(user=1.0), Process("gone"), Process(user=2.0))
    monkeypatch.setattr(psutil, "Process", process)
    seen, alone = (take_snapshot(status(7), with_children=children) for children in (True, False))
    assert (seen.ended, seen.stopped) == (alone.ended, alone.stopped) == (ended, stopped)
    if state != "gone":
        assert (seen.cpu_s, seen.children_cpu_s, alone.children_cpu_s) == (3.25, 3.5, None)


IO = "rchar: 1\nwchar: 20\nsyscr: 7\nread_bytes: 300\nwrite_bytes: 4000\n"


@pytest.mark.parametrize(
    ("files", "main_thread_s", "moved_bytes"),
    [
        ({"schedstat": "900000000 1500000000 3\n", "io": IO}, (0.9, 1.5), 4321),
        ({"schedstat": "900\n", "io": "rchar: 1\n"}, (0.0, 0.0), 0),
        ({"schedstat": "a b c\n", "io": "none\n"}, (0.0, 0.0), 0),
        ({}, (0.0, 0.0), 0),
    ],
)
def test_waits_for_a_core_and_moved_bytes_are_read_if_the_system_has_them(
    files: dict[str, str], main_thread_s: tuple[float, float], moved_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: str) -> str:
        folder, _, name = path.rpartition("/")
        assert folder == "/proc/7"
        if name not in files:
            raise FileNotFoundError
        return files[name]

    monkeypatch.setattr(watchdog, "Path", lambda path: SimpleNamespace(read_text=lambda: read(path)))
    assert (watchdog._main_thread_s(7), watchdog._moved_bytes(7)) == (main_thread_s, moved_bytes)

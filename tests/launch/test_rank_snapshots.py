"""What the launcher sees of a rank: its status, and its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from core.runs.test_observed_files import STATUS
from harness import wait_until

from frog.core.runs.observed import Status
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

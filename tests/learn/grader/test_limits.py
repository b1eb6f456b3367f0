"""Processes that sleep, and processes that only seem to."""

from __future__ import annotations

import itertools
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from frog.launch import resource_limits
from frog.launch.resource_limits import ResourceMonitor
from frog.learn.grader import grade
from frog.learn.grader.exercise import find_exercises
from frog.learn.grader.program import Ended, takes_more
from frog.learn.grader.world import Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems report one state per process")


@pytest.mark.parametrize(("loading_s", "found"), [(0.2, 1.0), (1.7, 1.0), (5.1, 3.0), (1000.0, 8.0)])
def test_slow_machine_gets_longer_limits(loading_s: float, found: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits.time, "process_time", lambda: loading_s)
    assert resource_limits.slowness() == pytest.approx(found)


def test_longer_limits_reach_every_process_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def run_world(task: Task, *_: object) -> SimpleNamespace:
        asked.append(task.seconds)
        return SimpleNamespace(output=(), failure=None)

    def run_program(
        words: object, scratch: object, env: object, stdin: object, seconds: float, wall_s: float, *_: object
    ) -> Ended:
        asked.extend((seconds, wall_s))
        return Ended(0, "", "", tmp_path, None)

    monkeypatch.setattr(grade, "run_world", run_world)
    monkeypatch.setattr(grade, "run_program", run_program)
    exercise = find_exercises()[0]
    for name, data in exercise.stub().items():
        (tmp_path / name).write_bytes(data)
    slow = grade.Grade(exercise, tmp_path, 1, None, tmp_path, 3.0)
    slow.world(2, seconds=5.0)
    slow.call()
    slow.program(["true"], seconds=1.0, wall_s=8.0)
    assert asked == [15.0, 6.0, 3.0, 24.0]


@pytest.fixture
def monitor(tmp_path: Path) -> ResourceMonitor:
    return ResourceMonitor([], 1.0, tmp_path)


def checks(monitor: ResourceMonitor, monkeypatch: pytest.MonkeyPatch, states: Iterator[str]) -> list[bool]:
    """Return each check's answer for a process whose threads are in these states, one letter for each thread."""
    said = []
    for now in states:
        stats = [f"{7 + thread} (a ) S) {state} 1 1".encode() for thread, state in enumerate(now)]
        monkeypatch.setattr(resource_limits, "of_threads", lambda pid, name, stats=stats: stats)
        said.append(monitor._runs(7, resource_limits._could_run(7)))
    return said


def test_thread_that_wakes_up_occasionally_counts_as_sleeping(
    monitor: ResourceMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(checks(monitor, monkeypatch, iter("SSR" * 100)))


def test_thread_that_waits_for_a_core_counts_as_running(
    monitor: ResourceMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = checks(monitor, monkeypatch, iter("R" * 30 + "S" * 30))
    assert said[:15] == [False] * 9 + [True] * 6
    assert said[-25:] == [False] * 25


def test_threads_that_run_in_turn_count_as_running(monitor: ResourceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(monitor, monkeypatch, iter(["RSS", "SRS", "SSR"] * 10))[9:] == [True] * 21


@pytest.mark.parametrize(("state", "found"), [("R", None), ("S", "never-ends")])
def test_time_spent_waiting_for_a_core_does_not_count_as_rest(
    state: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One check per second; occasional activity does not reset the total."""
    monitor = ResourceMonitor([os.getpid()], 1e9, tmp_path, {0: 0.0})
    monitor._memory[0] = psutil.Process().memory_info().rss  # ignore memory that earlier tests left in this process
    monkeypatch.setattr(resource_limits.time, "monotonic", itertools.count(monitor.last_activity_s + 1).__next__)
    monkeypatch.setattr(resource_limits, "of_threads", lambda pid, name: [f"7 (a ) S) {state} 1 1".encode()])
    breaches = []
    for _ in range(400):
        monitor.last_activity_s = math.inf
        breaches.append(monitor.check(set()))
    assert {breach.id if breach else None for breach in breaches[-9:]} == {found}


BUSY = """
import os, sys, threading, time
kept = b"x" * (64 << 20)
for _ in range(5):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
while time.process_time() < 0.3:
    pass
print("ready", flush=True)
time.sleep(600)
"""


def test_state_of_a_process_is_what_psutil_reports() -> None:
    words = [sys.executable, "-c", BUSY]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as busy:
        try:
            assert busy.stdout
            assert busy.stdout.readline() == "ready\n"
            own, other = resource_limits._state_of(busy.pid), resource_limits._state_by_psutil(busy.pid)
            assert own
            assert other
            assert (own.num_threads, own.num_descendants) == (other.num_threads, other.num_descendants) == (6, 3)
            assert own.used_s > 0.25
            assert own.memory > 64 << 20
            assert own.used_s == pytest.approx(other.used_s, abs=0.1)
            assert own.memory == pytest.approx(other.memory, rel=0.05)
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
    assert resource_limits._state_of(busy.pid) is resource_limits._state_by_psutil(busy.pid) is None


FORKS = """
import os, sys
shared = b"x" * (96 << 20)
reader, writer = os.pipe()
for _ in range(11):
    if os.fork() == 0:
        os.close(writer)
        kept = b"x" * (int(sys.argv[1]) << 20)
        os.write(1, b".")
        os.read(reader, 1)
        os._exit(0)
input()
"""


@pytest.mark.parametrize(("own_mib", "more"), [(1, False), (96, True)])
def test_memory_shared_by_forked_processes_counts_once(own_mib: int, more: bool) -> None:
    words = [sys.executable, "-c", FORKS, str(own_mib)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin
        assert parent.stdout
        assert parent.stdout.read(11) == "." * 11
        family = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
        assert sum(one.memory_info().rss for one in family) > 1 << 30
        assert takes_more(family, 1 << 30) is more
        parent.stdin.write("\n")

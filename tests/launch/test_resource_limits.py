"""Limits on what processes use: each one with scripted states at and above it, and the states against psutil."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from harness import wait_until

from frog.launch import resource_limits
from frog.launch.resource_limits import ResourceMonitor, end_descendants, folder_bytes, remove_shared_memory, slowness

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


class Ranks:
    """Processes 100, 101, … with states that a test sets, and a clock that it moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scratch: Path, count: int = 2, ready: bool = True) -> None:
        self.states = {100 + rank: state() for rank in range(count)}
        self.now_s = 1000.0
        monkeypatch.setattr(resource_limits, "_state_of", self.states.get)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.monitor = ResourceMonitor(
            list(self.states), 20.0, scratch, last_activity_s=self.now_s, _checked_s=self.now_s
        )
        self.monitor.check(set())  # the memory before they are ready
        self.monitor.began.update(dict.fromkeys(range(count), 0.0) if ready else {})

    def check(self, rank: int = 0, ended: set[int] | None = None, **values: object) -> tuple[str, int] | None:
        """Change a rank's state; return the breach and its rank."""
        self.states[100 + rank] = state(**values)
        breach = self.monitor.check(ended or set())
        return breach and (breach.id, breach.rank)

    def rest(self, seconds: float, step_s: float = 0.25, through: frozenset[int] = frozenset(), **values: object):
        """Return the breach, and after how many seconds it comes."""
        for pid in self.states:
            self.states[pid] = state(**values)
        for number in range(1, int(seconds / step_s) + 1):
            self.now_s += step_s
            if breach := self.monitor.check(set(), through):
                return breach.id, breach.rank, breach.asleep, number * step_s
        return None


def state(
    used_s: float = 0.0, memory: int = GIB, threads: int = 1, processes: int = 0, could_run: bool = False
) -> resource_limits._State:
    return resource_limits._State(used_s, memory, threads, processes, could_run)


@pytest.mark.parametrize(
    ("name", "allowed", "excess", "breach"),
    [
        ("used_s", 20.0, 0.01, "never-ends"),
        ("memory", 2 * GIB, 1, "too-much-memory"),
        ("threads", 512, 1, "too-many-processes"),
        ("processes", 32, 1, "too-many-processes"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_above_a_limit_is_named(
    name: str, allowed: float, excess: float, breach: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, tmp_path)
    assert ranks.check(rank, **{name: allowed}) is None
    assert ranks.check(rank, **{name: allowed + excess}) == (breach, rank)
    assert ranks.check(rank, {rank}, **{name: allowed + excess}) is None  # it has ended


def test_only_time_and_memory_after_a_rank_was_ready_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, tmp_path, ready=False)
    assert ranks.check(0, used_s=1000.0, memory=9 * GIB) is None
    ranks.monitor.began[0] = 1000.0
    assert ranks.check(0, used_s=1020.0, memory=10 * GIB) is None
    assert ranks.check(0, used_s=1020.5, memory=10 * GIB) == ("never-ends", 0)


def test_texts_of_breaches_have_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, tmp_path)
    texts = []
    for values in ({"used_s": 21.0}, {"memory": 3 * GIB}, {"threads": 600}, {"processes": 33}):
        ranks.states[101] = state(**values)
        breach = ranks.monitor.check(set())
        assert breach is not None
        assert not breach.asleep
        texts.append(breach.observed)
    assert texts == [
        "rank 1 had computed for 20 s and had not finished.",
        "rank 1 used more than 1 GiB of memory.",
        "rank 1 had 600 threads.",
        "rank 1 had 33 processes.",
    ]


def test_sleeping_ranks_are_stuck_after_five_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks(monkeypatch, tmp_path).rest(60) == ("never-ends", 0, True, 5.25)
    assert Ranks(monkeypatch, tmp_path).rest(60, through=frozenset({0})) == ("never-ends", 1, True, 5.25)
    assert Ranks(monkeypatch, tmp_path).rest(60, through=frozenset({0, 1})) == ("never-ends", 0, True, 5.25)


def test_ranks_that_form_a_world_are_not_stuck_but_may_not_rest_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, tmp_path, ready=False)
    assert ranks.rest(200) == ("never-ends", 0, True, 90.25)


def test_computing_a_quarter_of_a_second_counts_as_activity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, tmp_path)
    used_s = 0.0
    for _ in range(4):
        assert ranks.rest(4, used_s=used_s) is None
        used_s += 0.26
        assert {ranks.check(rank, used_s=used_s) for rank in (0, 1)} == {None}
    assert ranks.rest(60, used_s=used_s + 0.24) == ("never-ends", 0, True, 5.25)


@pytest.mark.skipif(not resource_limits._IS_LINUX, reason="a single look counts elsewhere")
def test_starved_process_counts_as_running_after_ten_looks_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = Ranks(monkeypatch, tmp_path)
    assert ranks.rest(200, 0.1, could_run=True) is None
    assert ranks.rest(60) == ("never-ends", 0, True, 5.25)
    for could_run in (True, False) * 20:  # awake at every second look
        last = ranks.rest(0.5, 0.5, could_run=could_run)
    assert last == ("never-ends", 0, True, 0.5)


def test_rest_is_the_time_in_which_no_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, tmp_path, ready=False)
    assert ranks.rest(80) is None
    assert ranks.rest(9, 1.0, could_run=True) is None  # rest too, until the tenth look
    assert ranks.rest(100, 1.0, could_run=True) is None
    assert ranks.rest(60) == ("never-ends", 0, True, 8.0)


def test_time_in_which_the_monitor_had_no_core_is_not_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Ranks(monkeypatch, tmp_path).rest(90, 3.0) == ("never-ends", 0, True, 63.0)  # 21 looks of 0.25 s
    assert Ranks(monkeypatch, tmp_path, ready=False).rest(2000, 6.0) is None


def test_files_have_a_limit_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(256 * MIB)
    assert ranks.check() is None
    (tmp_path / "below").mkdir()
    (tmp_path / "below/empty").touch()
    breach = ranks.monitor.check(set())
    assert breach is not None
    assert (breach.id, breach.observed) == ("too-many-files", "It wrote 256 MiB of files.")


def test_each_file_takes_at_least_64_kib(tmp_path: Path) -> None:
    for number, size in enumerate((0, 1, 64 * KIB, 64 * KIB + 1, 3 * MIB)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "file").write_bytes(b"x" * size)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert folder_bytes(tmp_path) == 4 * 64 * KIB + 64 * KIB + 1 + 3 * MIB
    assert folder_bytes(tmp_path / "missing") == 0


@pytest.mark.parametrize(("used_s", "factor"), [(0.0, 1.0), (1.7, 1.0), (3.4, 2.0), (13.6, 8.0), (100.0, 8.0)])
def test_slow_machine_has_more_time(used_s: float, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", lambda: used_s)
    assert slowness() == pytest.approx(factor)


@contextmanager
def sleeping(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_state_of_a_process_is_that_of_psutil() -> None:
    event = threading.Event()
    threads = [threading.Thread(target=event.wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with sleeping(2):
        own, oracle = resource_limits._state_of(os.getpid()), resource_limits._state_by_psutil(os.getpid())
        process = psutil.Process()
        times, memory, num_threads = process.cpu_times(), process.memory_info().rss, process.num_threads()
        num_descendants = len(process.children(recursive=True))  # the tests' own process may have others
    event.set()
    for found in (own, oracle):
        assert found is not None
        assert found.used_s == pytest.approx(times.user + times.system, abs=0.5)
        assert found.memory == pytest.approx(memory, rel=0.1)
        assert (found.num_threads, found.num_descendants, found.could_run) == (num_threads, num_descendants, True)


def test_state_of_a_sleeping_process_and_of_none() -> None:
    with sleeping(1) as (process,):
        for look in (resource_limits._state_of, resource_limits._state_by_psutil):
            wait_until(lambda look=look: not look(process.pid).could_run, "sleep sleeps")
            assert look(process.pid).num_threads == 1
    for look in (resource_limits._state_of, resource_limits._state_by_psutil):
        assert look(process.pid) is None


def test_command_with_parentheses_does_not_shift_the_values() -> None:
    assert resource_limits._after_name(b"12 (a) R (b) S 1 2") == [b"S", b"1", b"2"]


def test_descendants_end_except_those_to_keep() -> None:
    with sleeping(3) as (first, kept, last):
        end_descendants([kept.pid])
        assert not psutil.pid_exists(first.pid)
        assert not psutil.pid_exists(last.pid)
        assert kept.poll() is None


def test_shared_memory_of_ended_processes_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "SHARED_MEMORY", tmp_path)
    for name in ("torch_12_1_0", "torch_12_2_0", "torch_123_1_0", "torch_13_1_0", "other_12_1"):
        (tmp_path / name).touch()
    remove_shared_memory([12, 13])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other_12_1", "torch_123_1_0"]

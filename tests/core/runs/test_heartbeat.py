"""A rank's heartbeat: its last state, complete at any time."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from harness import wait_until

from frog.core.runs import EventWriter, heartbeat
from frog.core.runs.heartbeat import Heartbeat, read_heartbeat

WHO = {"rank": 2, "pid": os.getpid(), "node_rank": 0, "host": "pond", "attempt": 0, "world_size": 4, "timeout_s": 60.0}


def test_heartbeat_has_unfinished_operations(tmp_path: Path) -> None:
    path = tmp_path / "rank_2.json"
    writer = EventWriter(tmp_path / "events", Heartbeat(path, WHO, beat_s=None))
    writer.step = 7
    with writer.span("reduce"):
        first = writer.collective("all_reduce", "dp", 4096)
        writer.collective("all_gather", "tp", 64)
        first.done(1, 1)
        beat = read_heartbeat(path)
    assert beat is not None
    assert {key: getattr(beat, key) for key in WHO} == WHO
    assert (beat.step, beat.phase, beat.status, beat.num_collectives) == (7, "reduce", "running", 2)
    assert [(c.seq, c.op, c.axis, c.payload_bytes) for c in beat.open] == [(1, "all_gather", "tp", 64)]
    writer.emit("end", step=7, status="completed", weights_sha256=None)
    after = read_heartbeat(path)
    assert after is not None
    assert (after.phase, after.status) == (None, "completed")
    assert after.beat_ns > beat.beat_ns
    writer.close()


def test_closed_heartbeat_is_not_written_again(tmp_path: Path) -> None:
    """Otherwise the last heartbeat of a process that completed in the next world would be from the previous one."""
    path = tmp_path / "rank_2.json"
    heart = Heartbeat(path, WHO, beat_s=None)
    writer = EventWriter(tmp_path / "events", heart)
    writer.close()
    last = read_heartbeat(path)
    heart.enter(8, "data")
    assert read_heartbeat(path) == last
    assert last is not None
    assert last.status == "running"


def test_unreadable_heartbeat_is_reported_and_a_missing_one_is_not(tmp_path: Path) -> None:
    problems: list[str] = []
    assert read_heartbeat(tmp_path / "absent.json", problems) is None
    assert problems == []
    (tmp_path / "rank_1.json").write_text('{"rank": ')
    assert read_heartbeat(tmp_path / "rank_1.json", problems) is None
    (told,) = problems
    assert told.startswith(f"{tmp_path}/rank_1.json: not valid JSON")


def test_killed_process_leaves_its_last_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "beat.json"
    code = f"""
import signal, sys
from pathlib import Path
from frog.core.runs.heartbeat import Heartbeat
beat = Heartbeat(Path({str(path)!r}), {WHO!r}, beat_s=0.05)
beat.enter(3, "backward", 1)
signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:

        def phase() -> object:
            beat = read_heartbeat(path)
            return beat.phase if beat else None

        wait_until(lambda: phase() == "backward", "the first beats")
        first = read_heartbeat(path)
        assert first is not None
        wait_until(lambda: (read_heartbeat(path) or first).beat_ns > first.beat_ns, "another beat")
        process.send_signal(signal.SIGSTOP)
        stopped = read_heartbeat(path)
    finally:
        process.kill()
        process.wait()
    last = read_heartbeat(path)
    assert last is not None
    assert stopped is not None
    assert (last.step, last.phase, last.micro, last.status) == (3, "backward", 1, "running")
    assert last.beat_ns - stopped.beat_ns <= 0.05e9 * 40


def test_reader_never_sees_half_a_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "beat.json"
    beat = Heartbeat(path, WHO, beat_s=None)
    over = threading.Event()

    def write() -> None:
        for number in range(3000):
            beat.begin(number, "all_reduce", "world", 10 ** (number % 12), 1)
            if number % 3:
                beat.end(number)
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not over.is_set():
        assert read_heartbeat(path) is not None
    thread.join()


def test_event_writer_works_without_a_heartbeat(tmp_path: Path) -> None:
    assert read_heartbeat(tmp_path / "none.json") is None
    (tmp_path / "torn.json").write_text('{"rank": ')
    assert read_heartbeat(tmp_path / "torn.json") is None


def test_full_disk_does_not_end_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread beats again after a beat that failed; here it runs in this one, and the clock does not wait."""
    beat = Heartbeat(tmp_path / "beat.json", WHO, beat_s=None)
    tried: list[float] = []

    def write() -> None:
        tried.append(1)
        if len(tried) < 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        beat._descriptor = None

    monkeypatch.setattr(beat, "beat", write)
    monkeypatch.setattr(heartbeat.time, "sleep", lambda seconds: None)
    descriptor = beat._descriptor
    beat._keep_beating(0.5)
    assert len(tried) == 3
    assert descriptor is not None
    os.close(descriptor)


@pytest.mark.parametrize("number", [7, 8, 9])
def test_oldest_eight_collectives_under_way_are_shown(tmp_path: Path, number: int) -> None:
    beat = Heartbeat(tmp_path / "beat.json", WHO, beat_s=None)
    for seq in range(number):
        beat.begin(seq, "all_reduce", "dp", 8 * seq, 100 + seq)
    said = read_heartbeat(tmp_path / "beat.json")
    beat.close("failed")
    assert said is not None
    assert [(each.seq, each.payload_bytes, each.start_ns) for each in said.open] == [
        (seq, 8 * seq, 100 + seq) for seq in range(min(number, 8))
    ]
    assert said.num_collectives == number
    last = read_heartbeat(tmp_path / "beat.json")
    assert last is not None
    assert (last.status, (tmp_path / "beat.json").stat().st_size) == ("failed", 2048)


def test_thread_that_beats_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    beat = Heartbeat(tmp_path / "beat.json", WHO, beat_s=0.01)
    threads = [thread for thread in threading.enumerate() if thread.name == "heartbeat"]
    assert threads
    assert all(thread.daemon for thread in threads)
    beat.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()

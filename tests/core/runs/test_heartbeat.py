"""A rank's heartbeat: its last state, complete at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from harness import wait_until

from frog.core.runs import EventWriter
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

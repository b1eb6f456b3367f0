"""The watch over a program's world, without processes: what it does if a user stops the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from frog.core.files import write_json
from frog.core.runs.folder import RunFolder
from frog.core.runs.launcher_schema import StallEvent
from frog.core.runs.observed import Request
from frog.core.runs.read import read_launcher
from frog.core.schema import read_typed
from frog.launch import stalls
from frog.launch.launch_record import Journal
from frog.launch.node_agents import Options
from frog.launch.stalls import StallWatch
from frog.launch.watchdog import Snapshot

LINE = {"file": "/me/train.py", "line": 6, "function": "step"}


def write_status(run: Path, rank: int, answered: int = 0) -> None:
    status = {
        **dict.fromkeys(("local_rank", "node_rank", "attempt", "pid", "started_unix_ns", "unix_ns", "mono_ns"), 0),
        "format": 1,
        "rank": rank,
        "world_size": 2,
        "host": "a",
        "state": "running",
        "cpu_s": 1.0,
        "rss_bytes": 1,
        "line": LINE,
        "in": LINE,
        "groups": [{"group": "0", "enqueued": 5, "completed": 4}],
        "answered": answered,
    }
    write_json(run / f"observed/attempt_0/rank_{rank}/status.json", status)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StallWatch:
    """A watch over two ranks that wait in a collective."""
    snapshot = Snapshot(completed=4, pending=True, cpu_s=0)
    monkeypatch.setattr(stalls, "take_snapshots", lambda statuses, with_children: dict.fromkeys(statuses, snapshot))
    for rank in (0, 1):
        write_status(tmp_path, rank)
    return StallWatch(Journal(tmp_path, RunFolder(tmp_path)), Options())


def wait(watch: StallWatch, until_s: int) -> None:
    for now in range(until_s + 1):
        assert watch.look(0, {0, 1}, now) is None


def test_ranks_of_a_program_that_waits_are_asked_before_a_user_stops_it(
    tmp_path: Path, watch: StallWatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wait(watch, 8)
    assert watch.ask_before_stop(8)
    assert read_typed(tmp_path / "observed/request.json", Request).reason == "stop"
    write_status(tmp_path, 0, answered=1)
    assert not watch.may_stop(8.1)
    write_status(tmp_path, 1, answered=1)
    assert watch.may_stop(8.2)
    (stall,) = (event for event in read_launcher(RunFolder(tmp_path)).events if isinstance(event, StallEvent))
    assert (stall.kind, stall.still_s, stall.ends, stall.stopped) == ("hang", 8, False, True)
    assert capsys.readouterr().err.splitlines() == [
        "hang: no rank has finished a collective or computed anything for 8 s",
        "  ranks 0, 1: wait in collective number 5 of group 0 at /me/train.py:6 in step",
        f"  try: frog diagnose {tmp_path}",
    ]
    assert not watch.may_stop(8.3)
    assert capsys.readouterr().err == ""


def test_ranks_that_do_not_answer_are_stopped_soon(watch: StallWatch) -> None:
    wait(watch, 8)
    assert watch.ask_before_stop(8)
    assert not watch.may_stop(10.9)
    assert watch.may_stop(11)


def test_program_in_which_no_rank_has_waited_long_is_stopped_at_once(watch: StallWatch) -> None:
    assert not watch.ask_before_stop(0)
    wait(watch, 4)
    assert not watch.ask_before_stop(4)
    assert not watch.may_stop(4)

"""What the launcher's events add to the evidence of a program's ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from frog.observe.diagnose.program.evidence import Evidence
from frog.observe.diagnose.program.run_folder_evidence import add_run

WORLD = {"attempt": 0, "world_size": 2, "master_addr": "x", "master_port": 1}


def event(name: str, second: int, **fields: Any) -> dict[str, Any]:
    return {"event": name, "unix_ns": second * 10**9, **fields}


def start(node: int = 0, ranks: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    return event("world", 1, **WORLD, node=node, node_rank=node, ranks=ranks, pids=[70 + rank for rank in ranks])


def exit_of(rank: int, code: int, **fields: Any) -> dict[str, Any]:
    place = {"attempt": 0, "node": 0, "node_rank": 0, "rank": rank, "pid": 70 + rank}
    return event("exit", 5, **place, code=code, error=None, traceback=None, **fields)


def read(folder: Path, *events: dict[str, Any]) -> Evidence:
    (folder / "events").mkdir()
    (folder / "events/launcher.jsonl").write_text("".join(json.dumps(each) + "\n" for each in events))
    evidence = Evidence("here")
    add_run(evidence, folder, 0)
    return evidence


@pytest.mark.parametrize("left", [{"left": [0]}, {}])
def test_rank_that_had_ended_before_a_failure_is_known_if_the_launcher_says_so(
    tmp_path: Path, left: dict[str, list[int]]
) -> None:
    found = read(tmp_path, start(), exit_of(1, 1, **left))
    assert (found.of(1).exit_code, found.of(0).exit_code) == (1, 0 if left else None)


@pytest.mark.parametrize("how", [{"ends": True}, {"ends": False, "stopped": True}])
def test_rank_that_was_stopped_when_a_hang_was_ended_is_stopped(tmp_path: Path, how: dict[str, bool]) -> None:
    roles = {"0": "stopped", "1": "waits"}
    stall = event("stall", 4, attempt=0, kind="hang", still_s=12.0, roles=roles, text="hang", **how)
    found = read(tmp_path, start(), stall, exit_of(0, -9))
    assert (found.hung, found.deadline_s) == (True, 12.0)
    assert (found.of(0).stopped, found.of(0).exit_code) == (True, None)


def test_node_whose_agent_was_killed_before_anything_failed_is_lost(tmp_path: Path) -> None:
    worlds = [start(0, (0,)), start(1, (1,))]
    lost = event("node", 3, node=0, host="node0", code=-9)
    found = read(tmp_path, *worlds, lost, exit_of(1, 1), event("node", 6, node=1, host="node1", code=-9))
    assert (found.of(0).node_lost_ns, found.of(1).node_lost_ns) == (3 * 10**9, None)


@pytest.mark.parametrize(
    ("crash", "answered", "line"),
    [
        ("Timeout (0:00:30)!", True, 20),
        ("Timeout (0:00:30)!", False, 3),
        ("Timeout (0:00:30)!\n\nFatal Python error: Aborted", True, 3),
    ],
    ids=["starved", "still paused", "crashed later"],
)
def test_pause_that_is_over_is_not_where_a_rank_is(tmp_path: Path, crash: str, answered: bool, line: int) -> None:
    """A starved process, too, runs no Python for 30 s. One that wrote its stacks when asked has run since."""
    folder = tmp_path / "observed/attempt_0/rank_0"
    folder.mkdir(parents=True)
    frame = '  File "/home/me/train.py", line 3 in main\n'
    (folder / "crash.txt").write_text(f"{crash}\n\nThread 0x00007f53ccdfeb80 (most recent call first):\n{frame}")
    now = {"file": "/home/me/train.py", "line": 20, "function": "main"}
    common = {"format": 1, "rank": 0, "pid": 7, "unix_ns": 9}
    world = {"local_rank": 0, "node_rank": 0, "world_size": 2, "attempt": 0, "host": "a", "state": "running"}
    (folder / "status.json").write_text(
        json.dumps({**common, **world, "started_unix_ns": 1, "mono_ns": 1, "cpu_s": 1.0, "rss_bytes": 1, "line": now})
    )
    stacks = {"reason": "hang", "threads": [{"name": "MainThread", "main": True, "frames": [now]}]}
    if answered:
        (folder / "stacks.json").write_text(json.dumps({**common, **stacks}))
    rank = read(tmp_path, start()).of(0)
    assert rank.line is not None
    assert [rank.line.line, *(frame.line for frame in rank.stack)] == [line, line]
    assert bool(rank.crash) is (line == 3)

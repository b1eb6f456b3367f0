"""No rank runs the learner's code before all ranks have joined: a failure could break another rank's joining."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from frog.learn.grader.world import Task, _Running, run_world

RANKS = b"def work(learner, case):\n    return learner.one()\n"
LEARNER = b"def one():\n    return 1\n"
LATE_S = 0.5
"""Time in which a ready rank would return if it did not wait; a shorter time would hide the error."""


@pytest.mark.slow
def test_rank_runs_learner_code_only_after_all_ranks_are_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, str]] = []
    recognize, handle_message = _Running._recognize, _Running._handle_message

    def stop_the_first(running: _Running, connection: Any, number: int, kind: str) -> None:
        if number == 0 and kind != "output":
            os.kill(running._ranks[0].process.pid, signal.SIGSTOP)
        recognize(running, connection, number, kind)

    def listen(running: _Running, number: int, said: dict[str, Any]) -> None:
        heard.append((number, said["type"]))
        if heard == [(1, "ready")]:
            threading.Timer(LATE_S, os.kill, (running._ranks[0].process.pid, signal.SIGCONT)).start()
        handle_message(running, number, said)

    monkeypatch.setattr(_Running, "_recognize", stop_the_first)
    monkeypatch.setattr(_Running, "_handle_message", listen)
    scratch, labs = tmp_path / "scratch", tmp_path / "labs"
    scratch.mkdir()
    labs.mkdir()
    files = {"learner.py": LEARNER}
    task = Task(2, {}, "work", None, ({}, {}), False, 10.0, scratch, files, ("one",), RANKS, labs)
    world = run_world(task, None, scratch)
    assert world.values == [1, 1], world.failure
    assert heard[:2] == [(1, "ready"), (0, "ready")]

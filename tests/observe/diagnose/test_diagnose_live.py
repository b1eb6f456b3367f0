"""A real world: stopped and diagnosed while it runs, followed by `frog logs -f`, killed, and diagnosed again."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from harness import Harness, kill_tree, run_to_end, wait_until

from frog.core.runs.heartbeat import read_heartbeat
from frog.observe.diagnose.run_diagnosis import diagnose

NAME = "live-diagnosis"


@pytest.mark.slow
def test_live_run_is_diagnosed_when_stopped_and_when_killed(harness: Harness) -> None:
    settings = ["--set", f"name={NAME}", "--set", "train.steps=100000", "--set", "eval.every=100000"]
    world = harness.start("frog", "run", "--nproc", "2", "--", "train", "run.toml", *settings)
    folder, follower = harness.folder(NAME), None
    try:
        harness.wait_for_step(NAME, 4, world)
        follower = harness.start("frog", "logs", NAME, "-f", "--grep", "global batch|error:")
        beat = read_heartbeat(folder.heartbeat(1))
        assert beat is not None

        os.kill(beat.pid, signal.SIGSTOP)
        wait_until(lambda: diagnose(folder).fault != "running", "the diagnosis of a stopped rank", world)
        live = diagnose(folder)
        assert (live.fault, live.rank, live.outcome, live.certain) == ("stop", 1, "running", False)
        assert any("rank 0" in line and "waiting" in line for line in live.evidence)

        os.kill(beat.pid, signal.SIGCONT)
        wait_until(lambda: diagnose(folder).fault == "running", "a run that continues", world)
        os.kill(beat.pid, signal.SIGKILL)
        run_to_end(world)
        assert world.returncode == 128 + signal.SIGKILL
        found: dict[str, Any] = json.loads(harness.run("frog", "diagnose", NAME, "--json").stdout)
        assert (found["fault"], found["rank"], found["outcome"], found["certain"]) == ("kill", 1, "failed", True)
        assert found["step"] >= 4
        out, err = run_to_end(follower)
        assert (follower.returncode, err) == (0, "")
        assert "[rank 0] error: " in out
        assert "[rank 1] global batch" in out
    finally:
        for process in (world, follower):
            if process is not None and process.poll() is None:
                kill_tree(process)
                process.communicate()


def test_diagnose_without_run_is_an_error(harness: Harness) -> None:
    done = harness.run("frog", "diagnose", "nowhere", code=2)
    assert "Traceback" not in done.stderr
    assert "nowhere" in done.stderr

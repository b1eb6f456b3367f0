"""Worlds that restart after faults: they reach the same end as the undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest
from harness import Harness, run_to_end, wait_until

from frog.core.runs.event_schema import CommitEvent, StartEvent
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.read import RankEvents
from frog.measure.chaos.oracle import Oracle, read_oracle, recovery_problems

pytestmark = pytest.mark.slow

SETTINGS = ("train.steps=4", "checkpoint.every=1", "eval.every=2", "eval.sample_tokens=0")


@pytest.fixture(scope="module")
def undisturbed(harness: Harness) -> Oracle:
    harness.train(2, "undisturbed", *SETTINGS)
    return read_oracle(harness.folder("undisturbed"))


def program(name: str, *settings: str) -> list[str]:
    return ["train", "run.toml", *(word for text in (f"name={name}", *SETTINGS, *settings) for word in ("--set", text))]


def committed_before(told: RankEvents, start: int) -> set[int]:
    """Return the checkpoints that were complete when the world started for the `start`-th time."""
    numbers = [i for i, event in enumerate(told.events) if isinstance(event, StartEvent)]
    return {event.step for event in told.events[: numbers[start]] if isinstance(event, CommitEvent)}


@pytest.mark.timeout(1500)
def test_run_with_a_fault_in_every_step_reaches_the_same_weights(harness: Harness, undisturbed: Oracle) -> None:
    """Every step of the run has another fault: each time the world resumes from its last good checkpoint."""
    faults = [
        "kill rank=1 step=1 phase=data",
        "nan rank=0 step=2",
        "corrupt rank=1 step=3",
        "torn rank=0 step=4",
    ]
    words = [word for fault in faults for word in ("--fault", fault)]
    world = ["--nproc", "2", "--threads", "1", "--restarts", str(len(faults)), "--deadline", "60"]
    done = harness.run("frog", "chaos", *words, *world, "--", *program("unlucky"), limit_s=1440)
    assert recovery_problems(undisturbed, harness.folder("unlucky")) == []
    assert "never occurred" not in done.stderr
    assert done.stderr.count("restarted (attempt") == len(faults)
    starts = [event.step for event in harness.events("unlucky").main.of(StartEvent)]
    assert len(starts) == len(faults) + 1
    assert starts[1] == 0
    for number, (fault, from_step) in enumerate(zip(faults, starts[1:], strict=True), 1):
        step = int(fault.split("step=")[1].split()[0])
        whole = committed_before(harness.events("unlucky").main, number)
        damaged = {step} if fault.startswith(("corrupt", "torn")) else set()
        assert max(whole - damaged, default=0) <= from_step < step, fault
    told = done.stdout + done.stderr
    assert re.search(
        r"skipped checkpoint: runs/unlucky/checkpoints/step_00000003/rank_1\.safetensors: its SHA-256", told
    )
    assert re.search(r"skipped checkpoint: runs/unlucky/checkpoints/step_00000004/rank_0\.safetensors: \d+ bytes", told)
    assert "inject" not in harness.folder("unlucky").launcher_events.read_text()


def test_error_survives_a_restart_before_the_launcher_reads_it(harness: Harness) -> None:
    """Ranks of the next attempt are forked within milliseconds, and write to the same place."""
    world = ["--nproc", "2", "--threads", "1", "--restarts", "1"]
    process = harness.start("frog", "run", *world, "--", *program("late", "train.steps=60", "checkpoint.every=60"))
    harness.wait_for_step("late", 1, process)
    folder = harness.folder("late")
    first = read_heartbeat(folder.heartbeat(1))
    assert first is not None

    def is_another() -> bool:
        beat = read_heartbeat(folder.heartbeat(1))
        return beat is not None and beat.pid != first.pid

    process.send_signal(signal.SIGSTOP)
    try:
        os.kill(first.pid, signal.SIGKILL)
        wait_until(is_another, "another rank 1", process)
    finally:
        process.send_signal(signal.SIGCONT)
    run_to_end(process)
    assert process.returncode == 0
    last = read_heartbeat(folder.heartbeats / "attempt_0" / "rank_1.json")
    assert last is not None
    assert last.pid == first.pid
    assert read_heartbeat(folder.heartbeats / "attempt_0" / "rank_0.json") is not None


@pytest.mark.timeout(1200)
def test_run_continues_without_a_lost_node(harness: Harness, undisturbed: Oracle) -> None:
    """The world shrinks to the remaining node and uses the same samples; results differ only by rounding."""
    world = ["--nodes", "1:2x1", "--threads", "1", "--restarts", "3", "--deadline", "60"]
    fault = "node rank=1 step=3 phase=backward"
    harness.run("frog", "chaos", "--fault", fault, *world, "--", *program("shrunk"), limit_s=1140)
    assert recovery_problems(undisturbed, harness.folder("shrunk")) == []
    segments = harness.folder("shrunk").read_run_json().segments
    assert segments[0].world_size == 2
    assert any(segment.world_size == 1 for segment in segments[1:])
    assert all(segment.from_step > 0 for segment in segments[1:])
    events = [json.loads(line) for line in harness.folder("shrunk").launcher_events.read_text().splitlines()]
    assert any(event["event"] == "node" and event["code"] < 0 for event in events)

"""Real worlds of programs without any import of Frog that hang, are slow, or are stopped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from harness import Harness, kill_tree, run_to_end, wait_until

from frog.core.runs.launcher_schema import StallEvent
from frog.core.runs.observed import read_observed, read_statuses
from frog.core.runs.read import read_launcher

TOGETHER = """# Wait until all ranks have imported torch: on busy cores, that takes one of them seconds longer.
import os, sys, time
folder = f"together-{os.path.basename(sys.argv[0])}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, os.environ["RANK"]), "w").close()
while len(os.listdir(folder)) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.01)
"""
HANG = """
import os, time
import torch, torch.distributed as dist, together

def step(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        dist.all_reduce(x)  # rank 1 does not call it
    elif os.environ.get("TORCHELASTIC_RESTART_COUNT") == os.environ.get("HANGS", "0"):
        time.sleep(600)
    else:
        dist.all_reduce(x)

dist.init_process_group("gloo")
step(torch.ones(7), dist.get_rank())
dist.destroy_process_group()
"""
SLOW = """
import os, time
import torch, torch.distributed as dist, together
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 1:
    while not os.path.exists("enough"): torch.ones(300, 300) @ torch.ones(300, 300)
dist.all_reduce(x)
dist.destroy_process_group()
"""
STEPS = """
import time
import torch, torch.distributed as dist, together
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(4))
    time.sleep(0.01)
"""
DEADLINE = ("--deadline", "5")


def write(harness: Harness, name: str, text: str) -> None:
    (harness.root / "together.py").write_text(TOGETHER)
    (harness.root / name).write_text(text)


@contextlib.contextmanager
def started(harness: Harness, name: str) -> Iterator[subprocess.Popen[str]]:
    """Start a world of two; end it if the test fails, since it would run for ever."""
    process = harness.start("frog", "run", "--nproc", "2", *DEADLINE, "--", name, warm=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill_tree(process)
            process.communicate()


def stalls_of(harness: Harness, name: str) -> list[StallEvent]:
    return [event for event in read_launcher(harness.folder(name)).events if isinstance(event, StallEvent)]


def test_hang_ends_with_the_ranks_the_collective_and_both_lines(harness: Harness) -> None:
    write(harness, "hang.py", HANG)
    done = harness.run("frog", "run", "--nproc", "2", *DEADLINE, "--", "hang.py", code=137)
    heading, rank_0, rank_1, diagnosis, hint = done.stderr.partition("error: ")[2].splitlines()
    assert heading.startswith("hang: no rank has finished a collective")
    assert rank_0 == "  rank 0: waits in all_reduce number 2 of group 0 (Float [7]) at hang.py:8 in step"
    place = "  rank 1: waits outside torch.distributed at hang.py:10 in step (time.sleep(600)), after 1 collective"
    assert rank_1 == place
    assert diagnosis.startswith("diagnosis: rank 0 waits in all_reduce")
    assert "which rank 1 never calls" in diagnosis
    assert hint == "  try: frog diagnose runs/hang"
    (stall,) = stalls_of(harness, "hang")
    assert (stall.kind, stall.roles, stall.ends) == ("hang", {0: "waits", 1: "idle"}, True)
    assert harness.record("hang")["error"]["type"] == "HangError"
    evidence = read_observed(harness.folder("hang").path)[0]
    for rank in (0, 1):
        collectives, stacks = evidence[rank].collectives, evidence[rank].stacks
        assert collectives is not None
        assert stacks is not None
        assert (collectives.frames, collectives.groups["0"].ranks, stacks.reason) == (True, [0, 1], "hang")
        assert evidence[rank].problems == []
    collectives = evidence[0].collectives
    assert collectives is not None
    assert [(entry.seq, entry.done, entry.line and entry.line.line) for entry in collectives.entries] == [
        (1, True, 6),
        (2, False, 8),
    ]


@pytest.mark.slow
def test_world_restarts_after_a_hang(harness: Harness) -> None:
    write(harness, "again.py", HANG)
    done = harness.run("frog", "run", "--nproc", "2", "--restarts", "1", *DEADLINE, "--", "again.py")
    assert "hang: no rank has finished a collective" in done.stderr
    assert "restarted (attempt 1): world size 2" in done.stderr
    assert harness.record("again")["status"] == "completed"
    states = [own.status.state for own in read_observed(harness.folder("again").path)[1].values() if own.status]
    assert states == ["ended", "ended"]


@pytest.mark.slow
def test_slow_rank_is_reported_but_not_ended(harness: Harness) -> None:
    write(harness, "slow.py", SLOW)
    with started(harness, "slow.py") as process:
        wait_until(lambda: stalls_of(harness, "slow") != [], "the report", process)
        (harness.root / "enough").touch()
        _, err = run_to_end(process)
    assert process.returncode == 0
    (stall,) = stalls_of(harness, "slow")
    assert stall.still_s >= 5
    assert re.search(r"rank 1 computed for \d+ s while other ranks wait in a collective", err)
    assert "  rank 0: waits in collective number 2 of group 0 at slow.py:9\n" in err
    assert "  rank 1: computes at slow.py:8, after 1 collective\n" in err


@pytest.mark.slow
def test_evidence_is_collected_if_a_user_stops_a_program_that_waits(harness: Harness) -> None:
    write(harness, "stop.py", SLOW.replace("enough", "never"))
    with started(harness, "stop.py") as process:
        wait_until(lambda: stalls_of(harness, "stop") != [], "the report", process)
        process.send_signal(signal.SIGINT)
        _, err = run_to_end(process)
    assert process.returncode == 128 + signal.SIGINT
    assert "  rank 1: computes at stop.py:8 (while not os.path.exists" in err
    assert [(stall.stopped, stall.ends) for stall in stalls_of(harness, "stop")] == [(False, False), (True, False)]
    stacks = [own.stacks for own in read_observed(harness.folder("stop").path)[0].values()]
    assert [own.reason for own in stacks if own is not None] == ["stop", "stop"]
    found = json.loads(harness.run("frog", "diagnose", "stop", "--json").stdout)
    assert (found["fault"], found["rank"], found["line"], found["certain"]) == ("busy", 1, "stop.py:8", False)
    assert "; a user stopped the program after" in found["finding"]


@pytest.mark.slow
def test_stopped_rank_is_named(harness: Harness) -> None:
    write(harness, "steps.py", STEPS)
    folder = harness.folder("steps").path

    def runs() -> bool:
        statuses = read_statuses(folder, 0)
        return len(statuses) == 2 and all(any(g.completed > 3 for g in s.groups) for s in statuses.values())

    with started(harness, "steps.py") as process:
        wait_until(runs, "the first collectives", process)
        os.kill(read_statuses(folder, 0)[1].pid, signal.SIGSTOP)
        _, err = run_to_end(process)
    assert process.returncode == 137, err
    assert "  rank 1: is stopped at steps.py:" in err
    (stall,) = stalls_of(harness, "steps")
    assert stall.still_s >= 5

"""Worlds of several simulated nodes, restarts, and the watchdog: real agents, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from harness import Harness, all_gone, run_to_end, set_words, tree, wait_until
from in_process import write_faults

from frog.core.runs.event_schema import CommitEvent, StartEvent, StepEvent
from frog.core.runs.heartbeat import read_heartbeat
from frog.measure.chaos.sandbox import faults_env

STEPS = 60
HELD_AT = 35
"""The first checkpoint, at 10, is complete by then."""
HOLD = {"kind": "stop", "rank": 0, "step": HELD_AT, "phase": "forward"}
"""Rank 0 stops itself, so that the run cannot end before the fault; rank 1 waits for it in that step."""
SETTINGS = (f"train.steps={STEPS}", "checkpoint.every=10", f"eval.every={STEPS}", "train.timeout_s=60")


def words(name: str, *settings: str) -> list[str]:
    return ["train", "run.toml", *set_words(f"name={name}", *SETTINGS, *settings)]


@pytest.fixture(scope="module")
def undisturbed(harness: Harness) -> dict[str, Any]:
    harness.run("frog", "run", "--nproc", "2", "--", *words("nodes-calm"))
    return harness.record("nodes-calm")


def launcher_events(harness: Harness, name: str, kind: str) -> list[dict[str, Any]]:
    path = harness.folder(name).launcher_events
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def reach(harness: Harness, name: str, step: int, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait until rank 1 reaches a step; return its heartbeat."""

    def step_of_1() -> int:
        beat = read_heartbeat(harness.folder(name).heartbeat(1))
        return beat.step if beat else 0

    wait_until(lambda: step_of_1() >= step, f"step {step} of {name}", process)
    found = read_heartbeat(harness.folder(name).heartbeat(1))
    assert found is not None
    return dict(msgspec.to_builtins(found))


def start_faulty(
    harness: Harness, name: str, options: list[str], program: list[str], *faults: dict[str, Any]
) -> subprocess.Popen[str]:
    path = write_faults(harness.root / f"{name}.faults.toml", *faults)
    return harness.start("frog", "run", *options, "--", *program, env=faults_env(path))


def reach_hold(harness: Harness, name: str, process: subprocess.Popen[str]) -> tuple[dict[str, Any], psutil.Process]:
    """Wait until rank 0 has stopped; return rank 1's heartbeat, and rank 0."""
    found = reach(harness, name, HELD_AT, process)
    held = psutil.Process(harness.events(name).main.of(StartEvent)[0].pid)
    wait_until(lambda: held.status() == psutil.STATUS_STOPPED, "rank 0 to stop", process)
    return found, held


def disturb(
    harness: Harness,
    name: str,
    options: list[str],
    harm: Callable[[dict[str, Any]], None],
    *settings: str,
    faults: tuple[dict[str, Any], ...] = (HOLD,),
) -> str:
    """Start a world, inject a fault, and return its messages; it must succeed and leave nothing behind."""
    process = start_faulty(harness, name, options, words(name, *settings), *faults)
    found, held = reach_hold(harness, name, process)
    assert harness.events(name).main.of(CommitEvent) != [], "no checkpoint yet"
    family = tree(process)
    harm(found)
    held.resume()
    _, err = run_to_end(process)
    assert process.returncode == 0, err
    wait_until(lambda: all_gone(family), "the world to end")
    return err


def lose_node(harness: Harness, name: str, node: int) -> None:
    """Simulate a machine that loses power: kill its agent and its ranks together."""
    (pids,) = (told["pids"] for told in launcher_events(harness, name, "world") if told["node"] == node)
    for pid in (psutil.Process(pids[0]).ppid(), *pids):
        with contextlib.suppress(ProcessLookupError):  # the launcher also kills ranks without an agent
            os.kill(pid, signal.SIGKILL)


def test_two_nodes_give_the_same_weights_as_one(harness: Harness, undisturbed: dict[str, Any]) -> None:
    done = harness.run("frog", "run", "--nodes", "2x1", "--", *words("nodes-two-nodes"))
    assert harness.record("nodes-two-nodes")["weights_sha256"] == undisturbed["weights_sha256"]
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["node", "NODE_RANK", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    assert [line.split()[:5] for line in lines[1:3]] == [["node0", "0", "0", "0", "2"], ["node1", "1", "1", "0", "2"]]
    assert all(line.startswith(("node0 | ", "node1 | ")) for line in lines[3:])
    starts = [rank.of(StartEvent)[0] for rank in harness.events("nodes-two-nodes").ranks.values()]
    assert [(start.host, start.node_rank, start.local_rank) for start in starts] == [
        ("node0", 0, 0),
        ("node1", 1, 0),
    ]
    folder = harness.folder("nodes-two-nodes")
    assert f"done: {STEPS} steps" in folder.node_log(0).read_text()
    assert [event["code"] for event in launcher_events(harness, "nodes-two-nodes", "node")] == [0, 0]


@pytest.mark.slow
def test_killed_rank_is_reported_and_the_world_restarts_to_the_same_weights(
    harness: Harness, undisturbed: dict[str, Any]
) -> None:
    err = disturb(
        harness,
        "nodes-killed",
        ["--nproc", "2", "--restarts", "1"],
        lambda found: os.kill(found["pid"], signal.SIGKILL),
    )
    assert "was killed by SIGKILL" in err
    assert "restarted (attempt 1): world size 2" in err
    assert harness.record("nodes-killed")["weights_sha256"] == undisturbed["weights_sha256"]
    assert harness.record("nodes-killed")["order_sha256"] == undisturbed["order_sha256"]
    resumed = harness.events("nodes-killed").main.of(StartEvent)[1]
    assert resumed.step >= 10, "it did not resume from a checkpoint"
    told = {event["rank"]: event for event in launcher_events(harness, "nodes-killed", "exit")}
    assert told[1]["code"] == -signal.SIGKILL


@pytest.mark.slow
def test_watchdog_detects_a_stopped_rank(harness: Harness, undisturbed: dict[str, Any]) -> None:
    options = ["--nproc", "2", "--restarts", "1", "--deadline", "8"]
    process = start_faulty(harness, "nodes-stopped", options, words("nodes-stopped"), {**HOLD, "rank": 1})
    harness.wait_for_step("nodes-stopped", HELD_AT - 1, process)
    family = tree(process)
    _, err = run_to_end(process)
    assert process.returncode == 0, err
    assert all_gone(family)
    assert "rank 1" in err
    assert "sent no heartbeat" in err
    (hang,) = launcher_events(harness, "nodes-stopped", "hang")
    assert (hang["rank"], hang["kind"], hang["attempt"]) == (1, "silent", 0)
    assert hang["heartbeat"]["status"] == "running"
    assert harness.record("nodes-stopped")["weights_sha256"] == undisturbed["weights_sha256"]


@pytest.mark.slow
def test_lost_node_returns(harness: Harness, undisturbed: dict[str, Any]) -> None:
    err = disturb(
        harness,
        "nodes-gone",
        ["--nodes", "2x1", "--restarts", "2"],
        lambda found: lose_node(harness, "nodes-gone", 1),
    )
    assert "node1 was lost (SIGKILL)" in err
    assert "node1 returns" in err
    assert harness.record("nodes-gone")["weights_sha256"] == undisturbed["weights_sha256"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_world_shrinks_and_grows_with_its_nodes(harness: Harness) -> None:
    """Rank 0 is slow while alone, so that the node returns midway. Campaigns compare samples and losses."""
    err = disturb(
        harness,
        "nodes-elastic",
        ["--nodes", "1:2x1"],
        lambda found: lose_node(harness, "nodes-elastic", 1),
        "train.steps=400",
        faults=(
            HOLD,
            {"kind": "slow", "rank": 0, "step": HELD_AT + 1, "seconds": 0.5},
        ),
    )
    assert "restarted (attempt 1): world size 1" in err
    assert "restarted (attempt 2): world size 2" in err
    worlds = [(start.world_size, start.step) for start in harness.events("nodes-elastic").main.of(StartEvent)]
    assert [size for size, _ in worlds] == [2, 1, 2]
    assert worlds[2][1] > worlds[1][1], "the larger world did not continue where the smaller one stopped"
    steps = harness.events("nodes-elastic").main.by_step(StepEvent)
    assert list(steps) == list(range(1, 401))


@pytest.mark.slow
def test_failure_without_restarts_ends_the_run(harness: Harness) -> None:
    process = harness.start("frog", "run", "--nodes", "2x1", "--", *words("nodes-lost", "train.steps=100000"))
    reach(harness, "nodes-lost", 5, process)
    family = tree(process)
    lose_node(harness, "nodes-lost", 1)
    _, err = run_to_end(process)
    assert process.returncode not in (0, None)
    assert "error: node1 was killed by SIGKILL with all its ranks\n" in err
    assert "Traceback" not in err
    # On a machine that stands still for 20 s, the launcher ends rank 0 before it reports its own error.
    stopped = "the ranks of node0 did not notice, so the launcher stopped them" in err
    assert stopped or "with all its ranks\nrank 0 (pid" in err
    assert process.returncode == (137 if stopped else 1)
    wait_until(lambda: all_gone(family), "the world to end")


@pytest.mark.slow
def test_usage_error_is_not_retried(harness: Harness) -> None:
    done = harness.run(
        "frog",
        "run",
        "--nproc",
        "2",
        "--restarts",
        "3",
        "--",
        *words("nodes-wrong", "train.global_batch_size=7"),
        code=2,
    )
    assert "train.global_batch_size=7" in done.stderr
    assert "restarted" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_two_nodes_with_a_checkpoint(harness: Harness) -> None:
    process = harness.start("frog", "run", "--nodes", "2x1", "--", *words("nodes-stopped-nodes", "train.steps=100000"))
    reach(harness, "nodes-stopped-nodes", 5, process)
    family = tree(process)
    process.send_signal(signal.SIGINT)
    run_to_end(process)
    assert process.returncode == 128 + signal.SIGINT
    assert harness.record("nodes-stopped-nodes")["status"] == "interrupted"
    assert harness.folder("nodes-stopped-nodes").checkpoint_steps()[-1] == harness.record("nodes-stopped-nodes")["step"]
    wait_until(lambda: all_gone(family), "the world to end")


@pytest.mark.slow
def test_killed_launcher_leaves_no_process_behind(harness: Harness) -> None:
    process = harness.start(
        "frog",
        "run",
        "--nodes",
        "2x1",
        "--restarts",
        "5",
        "--",
        *words("nodes-no-launcher", "train.steps=100000", "train.timeout_s=3600"),
    )
    reach(harness, "nodes-no-launcher", 5, process)
    family = tree(process)
    process.kill()
    process.communicate()
    wait_until(lambda: all_gone(family), "agents, ranks and the store to end")


@pytest.mark.slow
def test_killed_launcher_of_a_foreign_script_leaves_no_process_behind(harness: Harness) -> None:
    (harness.root / "sleeper.py").write_text(
        "import os, time\nopen(f'sleeper-{os.environ[\"RANK\"]}', 'w').close()\ntime.sleep(600)\n"
    )
    process = harness.start("frog", "run", "--nproc", "2", "--", "sleeper.py")
    wait_until(lambda: len(list(harness.root.glob("sleeper-*"))) == 2, "both ranks", process)
    family = tree(process)
    assert len(family) >= 4
    process.kill()
    process.communicate()
    wait_until(lambda: all_gone(family), "agent and ranks to end")


@pytest.mark.slow
def test_continue_resumes_an_existing_run(harness: Harness, undisturbed: dict[str, Any]) -> None:
    """A job that its scheduler requeues uses this command."""
    program = [*words("nodes-again"), "--continue"]
    process = start_faulty(harness, "nodes-again", ["--nproc", "2"], program, HOLD)
    _, held = reach_hold(harness, "nodes-again", process)
    process.send_signal(signal.SIGTERM)
    held.resume()
    run_to_end(process)
    assert process.returncode == 128 + signal.SIGTERM
    stopped = harness.record("nodes-again")["step"]
    assert HELD_AT <= stopped < STEPS
    harness.run("frog", "run", "--nproc", "2", "--", *words("nodes-again"), "--continue")
    assert harness.events("nodes-again").main.of(StartEvent)[1].step == stopped
    assert harness.record("nodes-again")["weights_sha256"] == undisturbed["weights_sha256"]


@pytest.mark.slow
def test_continue_keeps_a_completed_run(harness: Harness) -> None:
    record = harness.folder("nodes-again").record_json.read_bytes()
    done = harness.run("frog", *words("nodes-again"), "--continue")
    assert f"runs/nodes-again already completed its {STEPS} steps" in done.stdout
    assert harness.folder("nodes-again").record_json.read_bytes() == record


@pytest.mark.slow
def test_continue_restarts_if_no_checkpoint_can_be_trusted(harness: Harness) -> None:
    folder = harness.folder("nodes-again")
    damaged: list[Path] = sorted(folder.checkpoints.glob("step_*/rank_0.safetensors"))
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-1])
    done = harness.run("frog", "run", "--nproc", "2", "--", *words("nodes-again"), "--continue")
    assert "no intact checkpoint: the run restarts at step 0" in done.stdout
    assert harness.events("nodes-again").main.of(StartEvent)[2].step == 0


def test_resume_and_continue_cannot_be_combined(harness: Harness) -> None:
    done = harness.run("frog", "train", "--resume", "nodes-again", "--continue", code=2)
    assert "--resume cannot be combined with --continue" in done.stderr

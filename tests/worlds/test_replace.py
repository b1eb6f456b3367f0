"""Replacement of lost ranks by new ones, which join on their own: `frog run --replace`. Real worlds, real kills.

Ranks stop themselves at a step, so that no rank is admitted, and nothing ends, before the test allows it. Meanwhile
replacements load torch: no timeout may expire while a rank is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence

import psutil
import pytest
from harness import MODEL, Harness, all_gone, run_to_end, set_words, tree, wait_until

from frog.core.config import from_dict
from frog.core.env import world_env
from frog.core.errors import UsageError
from frog.core.runs.changes import find_changes
from frog.core.runs.event_schema import MembershipEvent, StartEvent, StepEvent
from frog.core.runs.heartbeat import read_heartbeat
from frog.core.runs.launcher_schema import ReplaceEvent
from frog.core.runs.read import read_launcher
from frog.observe.diagnose.run_diagnosis import diagnose
from frog.train.start import joined_world

PATIENT = "train.timeout_s=600"
SETTINGS = ("train.steps=40", "train.global_batch_size=12", "eval.every=40", "checkpoint.every=40", PATIENT)


def start(harness: Harness, name: str, faults: Sequence[str], *words: str, warm: bool = True) -> subprocess.Popen[str]:
    asked = [word for fault in faults for word in ("--fault", fault)]
    run = ["train", "run.toml", *set_words(f"name={name}", "comm.on_loss=shrink", *SETTINGS)]
    world = (*words, "--deadline", "600", "--threads", "1")
    return harness.start("frog", "chaos", *asked, *world, "--", *run, warm=warm)


def replacement(harness: Harness, name: str, number: int, process: subprocess.Popen[str]) -> psutil.Process:
    """Return the rank that replaces a lost one, once it has started."""

    def started() -> list[int]:
        said = read_launcher(harness.folder(name)).events
        return [event.pid for event in said if isinstance(event, ReplaceEvent) and event.number == number]

    wait_until(lambda: bool(started()), f"replacement {number}", process)
    return psutil.Process(started()[0])


@contextlib.contextmanager
def stopped(harness: Harness, name: str, rank: int, process: subprocess.Popen[str]) -> Iterator[None]:
    """Wait until that rank has stopped itself; continue it at the end of the block."""
    found: list[psutil.Process] = []

    def is_stopped() -> bool:
        beat = read_heartbeat(harness.folder(name).heartbeat(rank))
        found[:] = [psutil.Process(beat.pid)] if beat is not None else []
        return bool(found) and found[0].status() == psutil.STATUS_STOPPED

    wait_until(is_stopped, f"rank {rank} to stop", process)
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            found[0].send_signal(signal.SIGCONT)


def kill(harness: Harness, name: str, rank: int) -> None:
    beat = read_heartbeat(harness.folder(name).heartbeat(rank))
    assert beat is not None
    os.kill(beat.pid, signal.SIGKILL)


def wait_for_join_request(harness: Harness, name: str, joining: psutil.Process) -> None:
    port = json.loads(harness.folder(name).join_endpoint_json.read_text())["port"]
    wait_until(lambda: any(link.raddr[1:] == (port,) for link in joining.net_connections()), "a join request")


def joins(harness: Harness, name: str) -> list[list[int]]:
    return [event.joined for event in harness.events(name).main.of(MembershipEvent) if event.joined]


@pytest.mark.slow
def test_lost_ranks_are_replaced_up_to_the_limit(harness: Harness) -> None:
    """One replacement dies before it is admitted, one afterwards, one stays; then the limit is reached."""
    name = "replace"
    stops = [f"stop rank={rank} step={step} phase=data" for rank, step in ((0, 5), (1, 20), (0, 30))]
    process = start(harness, name, stops, "--nproc", "3", "--replace", "3")
    with stopped(harness, name, 0, process):
        kill(harness, name, 2)
        first = replacement(harness, name, 1, process)
        wait_for_join_request(harness, name, first)
        first.kill()
        second = replacement(harness, name, 2, process)
        wait_for_join_request(harness, name, second)
    with stopped(harness, name, 1, process):
        second.kill()
        wait_for_join_request(harness, name, replacement(harness, name, 3, process))
    with stopped(harness, name, 0, process):
        kill(harness, name, 1)
    _, err = run_to_end(process)
    assert process.returncode == 0, err
    assert err.count("was killed by SIGKILL") == 4
    assert [line.rpartition(" (")[2] for line in err.splitlines() if "replaced" in line] == [
        f"{number} of 3)" for number in (1, 2, 3)
    ]
    changes = find_changes(harness.events(name).attempts)
    (one, of_one), (other, of_other) = [pair for change in changes for pair in change.replaced.items()]
    assert [who for change in changes for who in change.joined] == [one, other]
    assert [who for change in changes for who in change.lost] == [2, one, 1]
    assert (of_one, of_other) == (2, one)
    assert f"joined to replace rank {one}" in str(diagnose(harness.folder(name)).evidence)
    check_same(harness, name)


def check_same(harness: Harness, name: str) -> None:
    """Check that the run took every step once, with the same samples as a run without faults."""
    harness.run("frog", "train", "run.toml", *set_words(f"name={name}-calm", *SETTINGS))
    record, calm = harness.record(name), harness.record(f"{name}-calm")
    assert (record["status"], record["order_sha256"]) == ("completed", calm["order_sha256"])
    assert set(harness.events(name).main.by_step(StepEvent)) == set(range(1, 41))


@pytest.mark.slow
def test_each_node_replaces_its_only_rank_and_one_replacement_is_too_late(harness: Harness) -> None:
    name = "replace-node"
    faults = ("stop rank=0 step=5 phase=data", "kill rank=0 step=40 phase=zero")
    process = start(harness, name, faults, "--nodes", "2x1", "--replace", "2")
    with stopped(harness, name, 0, process):
        kill(harness, name, 1)
        wait_for_join_request(harness, name, replacement(harness, name, 1, process))
    _, err = run_to_end(process)
    assert process.returncode == 0, err
    assert joins(harness, name) == [[2]]
    assert {event.node_rank for event in harness.events(name).ranks[1].of(StartEvent)} == {1}
    assert err.count("is replaced by process") == 2
    assert "to replace rank 0, but has not joined" in str(diagnose(harness.folder(name)).as_json())


@pytest.mark.slow
def test_waiting_replacement_ends_when_the_run_is_interrupted(harness: Harness) -> None:
    name = "replace-stop"
    process = start(harness, name, ["stop rank=0 step=5 phase=data"], "--nproc", "3", "--replace", "1", warm=False)
    with stopped(harness, name, 0, process):
        kill(harness, name, 2)
        wait_for_join_request(harness, name, replacement(harness, name, 1, process))
        family = tree(process)
        process.terminate()
    _, err = run_to_end(process)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert harness.record(name)["status"] == "interrupted"
    wait_until(lambda: all_gone(family), "all processes to end")


@pytest.mark.slow
def test_waiting_replacements_end_when_all_ranks_are_lost(harness: Harness) -> None:
    name = "replace-all"
    stops = [f"stop rank={rank} step=5 phase=data" for rank in (0, 1)]
    process = start(harness, name, stops, "--nproc", "2", "--replace", "9")
    with stopped(harness, name, 0, process), stopped(harness, name, 1, process):
        kill(harness, name, 0)
        replacement(harness, name, 1, process)
        kill(harness, name, 1)
    _, err = run_to_end(process)
    assert process.returncode == 137, err
    assert re.search(r"error: rank [01] \(pid \d+\) was killed by SIGKILL", err), err
    assert err.count("is replaced by process") <= 2


def test_replace_requires_a_run_that_survives_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROG_REPLACE", "2")
    config = from_dict({"model": MODEL, "data": {"sequence_length": 16}})
    with (
        pytest.raises(UsageError, match=r"--replace 2 with comm.on_loss='fail'"),
        joined_world(config, world_env()),
    ):
        pass

"""A network that is cut in the middle of an all-reduce: all ranks end, and the run folder is enough to diagnose it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness import Harness, set_words

from frog.core.runs.event_schema import CollectiveEvent
from frog.core.runs.heartbeat import read_heartbeat
from frog.observe.diagnose.run_diagnosis import diagnose

pytestmark = pytest.mark.slow

NAME, STEP, AFTER_S = "cut-inside", 2, 0.4

SETTINGS = ("train.steps=4", "train.global_batch_size=6", "train.timeout_s=10")


def words(name: str) -> list[str]:
    return ["train", "run.toml", *set_words(f"name={name}", *SETTINGS)]


@pytest.fixture(scope="module")
def cut(harness: Harness, may_make_networks: None) -> str:
    """The error of a world of three nodes, on links so slow that an all-reduce of the gradient takes two seconds."""
    fault = ("--fault", f"cut rank=2 step={STEP} phase=reduce after_s={AFTER_S}")
    world = ("--nodes", "3x1", "--network", "rate=500kbit", "--deadline", "60")
    return harness.run("frog", "chaos", *fault, *world, "--", *words(NAME), code=1).stderr


def test_cut_stops_every_rank_inside_the_all_reduce(harness: Harness, cut: str) -> None:
    """The cut came while the gradient was being sent, which takes longer than `AFTER_S`."""
    folder = harness.folder(NAME)
    for rank, told in harness.events(NAME).ranks.items():
        gradients = [e for e in told.of(CollectiveEvent) if e.op == "all_reduce" and e.payload_bytes > 10_000]
        assert all((e.end_ns - e.start_ns) / 1e9 > 2 * AFTER_S for e in gradients), "too short to be cut midway"
        beat = read_heartbeat(folder.heartbeat(rank))
        assert beat is not None
        assert (beat.step, beat.phase) == (STEP, "reduce")
        assert [call.op for call in beat.open] == ["all_reduce"]


def test_error_after_a_cut_names_rank_and_collective(cut: str) -> None:
    assert "error: rank " in cut
    assert "all_reduce of " in cut
    assert "Traceback" not in cut


def test_diagnosis_of_a_cut_names_node_step_and_collective(harness: Harness, cut: str) -> None:
    found = diagnose(harness.folder(NAME))
    assert (found.fault, found.node_rank, found.step, found.phase) == ("cut", 2, STEP, "reduce")
    assert (found.collective or "").startswith("all_reduce of ")
    assert found.outcome == "failed"
    told = json.loads(harness.run("frog", "diagnose", NAME, "--json").stdout)
    assert told["fault"] == "cut"


def test_run_survives_a_short_cut(harness: Harness, cut: str) -> None:
    """The network heals after three seconds: TCP resends the lost packets, and the ranks only wait longer."""
    fault = ("--fault", f"cut rank=2 step={STEP} phase=reduce for_s=3")
    world = ("--nodes", "3x1", "--network", "rate=20mbit", "--deadline", "60")
    harness.run("frog", "chaos", *fault, *world, "--", *words("cut-short"), "--set", "train.timeout_s=60")
    end = launcher_events(harness, "cut-short")[-1]
    assert end["event"] == "end"
    link = end["network"]["nodes"][2]
    assert link["cut_frames"] > 0
    assert not link["is_cut"]
    told = harness.events("cut-short").ranks[2].of(CollectiveEvent)
    assert max(e.end_ns - e.start_ns for e in told if e.step == STEP) > 0.5e9
    assert harness.record("cut-short")["status"] == "completed"


def launcher_events(harness: Harness, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in harness.folder(name).launcher_events.read_text().splitlines()]


def test_cut_run_resumes_to_the_weights_of_an_undisturbed_run(harness: Harness, cut: str) -> None:
    """The weights equal those of an undisturbed run on three nodes: on one node, sums have another order."""
    for name in (NAME, "cut-never"):
        harness.run("frog", "run", "--nodes", "3x1", "--", *words(name), "--continue")
    for name in (NAME, "cut-short"):
        assert harness.record(name)["weights_sha256"] == harness.record("cut-never")["weights_sha256"]
    assert [e["event"] for e in launcher_events(harness, NAME)].count("launch") == 2

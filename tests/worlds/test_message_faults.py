"""Message faults between ranks: a pipeline and a ring, each in one world that restarts after each fault."""

from __future__ import annotations

import sys

import pytest
from harness import Harness, set_words

from frog.observe.diagnose.diagnosis import Diagnosis
from frog.observe.diagnose.run_diagnosis import diagnose

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: the test names Linux signals"),
]

PIPELINE = [
    "missing rank=0 step=3 phase=forward",  # then the other stage waits for a message that never arrives
    "shape rank=1 step=5 phase=backward",  # a gradient that is too short, which gloo accepts
]
RING = [
    "missing rank=1 step=3 phase=forward",
    "shape rank=1 step=5 phase=forward",  # a buffer that is too small, on which gloo aborts
]


def diagnoses(harness: Harness, name: str, setting: str, faults: list[str]) -> list[Diagnosis]:
    """Return the diagnoses of a run with these faults, the latest first."""
    words = [word for fault in faults for word in ("--fault", fault)]
    settings = set_words(
        f"name={name}", setting, "train.steps=6", "train.timeout_s=10", "train.grad_accum=2", "eval.every=6"
    )
    world = ["--nproc", "2", "--threads", "1", "--restarts", "3"]
    harness.run("frog", "chaos", *words, *world, "--", "train", "run.toml", *settings, limit_s=510)
    result = diagnose(harness.folder(name))
    return [result, *result.also]


def seen(result: Diagnosis) -> tuple[object, ...]:
    return result.fault, result.rank, result.step, result.phase, (result.collective or "").partition(" ")[0]


def test_message_faults_in_a_pipeline_are_diagnosed(harness: Harness) -> None:
    found = diagnoses(harness, "message-faults-pp", "strategy.pp=2", PIPELINE)
    assert ("missing", 0, 3, "forward", "send") in map(seen, found)
    assert ("shape", 1, 5, "backward", "send") in map(seen, found)


def test_message_faults_in_a_ring_are_diagnosed(harness: Harness) -> None:
    found = diagnoses(harness, "message-faults-cp", "strategy.cp=2", RING)
    assert ("missing", 1, 3, "forward", "send_recv") in map(seen, found)
    assert ("shape", 1, 5, "forward", "send_recv") in map(seen, found)

"""The loop with a strategy that does not reduce in every step: ranks run local steps, and stop together."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Harness

from frog.core.runs.event_schema import CollectiveEvent, StepEvent

WORKER = Path(__file__).parent / "local_steps_worker.py"


def world(harness: Harness, name: str, code: int) -> str:
    done = harness.run("frog", "run", "--nproc", "2", "--", str(WORKER), name, code=code)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def calm(harness: Harness) -> Harness:
    world(harness, "calm", code=0)
    return harness


def test_ranks_do_not_communicate_in_local_steps(calm: Harness) -> None:
    for rank in calm.events("local-calm").ranks.values():
        sent = {event.step for event in rank.of(CollectiveEvent)} - {0}  # the model is scored before the first step
        assert sent == {3, 6, 9}


def test_local_steps_report_each_ranks_own_loss(calm: Harness) -> None:
    first, second = (rank.by_step(StepEvent) for rank in calm.events("local-calm").ranks.values())
    for step in range(1, 10):
        is_common = first[step].loss_mean == second[step].loss_mean
        assert is_common == (step % 3 == 0)
    assert calm.record("local-calm")["status"] == "completed"


def test_stop_request_waits_for_the_end_of_the_round(calm: Harness) -> None:
    out = world(calm, "stop", code=143)
    assert "stopped at step 6, saved at step 6" in out
    assert all(max(rank.by_step(StepEvent)) == 6 for rank in calm.events("local-stop").ranks.values())


def test_non_finite_local_step_is_reported_by_its_rank(calm: Harness) -> None:
    out = world(calm, "nan", code=1)
    ids = calm.events("local-calm").ranks[1].by_step(StepEvent)[4].sample_ids
    last = out[out.rindex("error:") :]
    assert "step 4: the loss or the gradient is not finite" in last
    assert "rank 1: loss nan" in last
    assert f"samples {ids}" in last

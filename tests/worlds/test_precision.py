"""Mixed precision in real runs: fp16 with an initial loss scale that is too high, and bf16 compared with float32."""

from __future__ import annotations

import pytest
from harness import Harness
from many_runs import train_many

from frog.core.runs.event_schema import EvalEvent, StepEvent
from frog.train.checkpoint import find_good

pytestmark = pytest.mark.slow

HIGH = 2.0**24
"""The tiny model's gradients reach about 0.2: multiplied by this, they are far above 65504, the maximum of fp16."""

FP16 = ("train.precision=fp16", f"train.initial_loss_scale={HIGH:.0f}", "train.steps=12", "eval.every=4")
RUNS = {
    "fp16-zero1": (*FP16, "strategy.name=zero1"),
    "fp16-zero3": (*FP16, "strategy.name=zero3"),
    "fp16-tp": (*FP16, "strategy.tp=2"),
    "fp32": ("train.steps=40",),
    "bf16": ("train.steps=40", "train.precision=bf16"),
}
OVERFLOWING = [name for name in RUNS if name.startswith("fp16")]


@pytest.fixture(scope="module")
def runs(harness: Harness) -> Harness:
    train_many(harness, 2, RUNS)
    return harness


def steps_of(runs: Harness, name: str, rank: int = 0) -> list[StepEvent]:
    return list(runs.events(name).ranks[rank].by_step(StepEvent).values())


@pytest.mark.parametrize("name", OVERFLOWING)
def test_overflowing_steps_are_skipped_and_halve_the_scale_on_every_rank(runs: Harness, name: str) -> None:
    steps = steps_of(runs, name)
    assert [(step.loss_scale, step.skipped) for step in steps] == [
        (step.loss_scale, step.skipped) for step in steps_of(runs, name, rank=1)
    ]
    scale = HIGH
    for step in steps:
        assert step.loss_scale == scale
        assert step.skipped == (step.grad_norm is None), "JSON has only finite numbers"
        assert step.loss_mean is not None
        scale = scale / 2 if step.skipped else scale
    assert [step.skipped for step in steps[:4]] == [True] * 4
    assert [step.skipped for step in steps[-3:]] == [False] * 3
    checkpoint, _ = find_good(runs.folder(name))
    assert checkpoint is not None
    assert checkpoint.state["scaler"]["scale"] == scale
    last = max(step.step for step in steps if step.skipped)
    assert checkpoint.state["scaler"]["_growth_tracker"] == len(steps) - last


@pytest.mark.parametrize("name", OVERFLOWING)
def test_skipped_step_changes_no_weight(runs: Harness, name: str) -> None:
    scores = runs.events(name).main.by_step(EvalEvent)
    assert scores[4].loss == scores[0].loss  # all four steps were skipped
    assert scores[12].loss < scores[8].loss < scores[4].loss


@pytest.mark.parametrize("name", OVERFLOWING)
def test_overflow_is_reported_in_log_and_report(runs: Harness, name: str) -> None:
    for rank in (0, 1):
        log = runs.folder(name).rank_log(rank).read_text()
        assert "step 1: the gradient overflowed at loss scale 16,777,216" in log
        assert log.count("overflowed") == sum(step.skipped for step in steps_of(runs, name, rank))
    page = runs.folder(name).report_html
    runs.run("frog", "report", f"runs/{name}")
    num_skipped = sum(step.skipped for step in steps_of(runs, name))
    assert f"{num_skipped} of 12 steps overflowed and were skipped" in page.read_text()


def test_overflow_on_one_rank_skips_the_step_on_all(runs: Harness) -> None:
    """One rank's part of a split tensor overflows and the other's does not: both skip the step."""
    alone = [
        first.step
        for first, other in zip(*(steps_of(runs, "fp16-tp", rank) for rank in (0, 1)), strict=True)
        if (first.grad_norm_local is None) != (other.grad_norm_local is None)
    ]
    assert alone
    assert all(steps_of(runs, "fp16-tp")[step - 1].skipped for step in alone)


def test_strategies_agree_in_fp16(runs: Harness) -> None:
    """The results agree within the rounding error of fp16, which keeps 11 bits of each product."""
    losses = [[step.loss_mean for step in steps_of(runs, name)] for name in OVERFLOWING]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-3)


def test_bf16_reaches_the_loss_of_float32(runs: Harness) -> None:
    exact, rounded = ([step.loss_mean for step in steps_of(runs, name)] for name in ("fp32", "bf16"))
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=1e-2)
    assert exact[-1] < 0.85 * exact[0]
    assert all(step.loss_scale is None for step in steps_of(runs, "bf16"))

"""Where a fault can happen: the steps in which a run really evaluates and saves, and values of its fields."""

from __future__ import annotations

import pytest

from frog.core.config.faults import Fault, Scene, parse_faults
from frog.core.errors import ConfigError

STEPS = 10


def steps_of(phase: str, every: int) -> set[int]:
    """Walk through a run as its loop does: it evaluates before step 1, and does both after the last step."""
    happened = {0} if phase == "evaluate" else set()
    for step in range(1, STEPS + 1):
        if step % every == 0 or step == STEPS:
            happened.add(step)
    return happened


@pytest.mark.parametrize(("phase", "every"), [("checkpoint", 4), ("evaluate", 3), ("checkpoint", 5), ("evaluate", 20)])
def test_a_fault_in_a_rare_phase_needs_a_step_with_that_phase(phase: str, every: int) -> None:
    other = every + 1
    cadence = {"checkpoint_every": every, "eval_every": other} if phase == "checkpoint" else {}
    scene = Scene(2, STEPS, **{"checkpoint_every": other, "eval_every": every, **cadence})
    possible = {step for step in range(STEPS + 3) if not scene.problems(Fault("kill", 0, step, phase))}
    assert possible == steps_of(phase, every)


def test_every_training_step_has_the_other_phases_and_step_0_has_none() -> None:
    scene = Scene(2, STEPS, checkpoint_every=4, eval_every=4)
    for phase in ("data", "forward", "reduce"):
        possible = {step for step in range(STEPS + 3) if not scene.problems(Fault("kill", 1, step, phase))}
        assert possible == set(range(1, STEPS + 1))
    assert scene.problems(Fault("kill", 2, 1, "data")) == ["rank=2: this world has ranks 0 to 1"]


def test_seconds_are_zero_or_more_and_finite() -> None:
    for seconds in ("0", "0.25", "3"):
        (fault,) = parse_faults([f"slow rank=0 step=1 seconds={seconds}"])
        assert fault.seconds == float(seconds)
    for seconds in ("-0.5", "inf", "nan"):
        with pytest.raises(ConfigError):
            parse_faults([f"slow rank=0 step=1 seconds={seconds}"])

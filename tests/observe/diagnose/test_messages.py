"""Sends, receives and shifts that differ from those of a rank's earlier step."""

from __future__ import annotations

from pathlib import Path

import pytest
from failed_run import PHASES, FailedRun, lost
from test_diagnose import found, place

SENT, RECEIVED, SHIFTED = ("", "send", "pp", 4096), ("", "recv", "pp", 4096), ("", "send_recv", "cp", 8192)
SHORT = ("", "send", "pp", 2048)
STEP = [("forward", [SENT]), ("forward", [SENT]), ("backward", [RECEIVED]), ("backward", [RECEIVED])]
"""Messages of the first of two stages, after the phases to which they belong."""


@pytest.fixture
def run(tmp_path: Path) -> FailedRun:
    """Return two stages, of which only the first sends and receives messages."""
    run = FailedRun(tmp_path / "run", 2, mesh={"pp": 2, "dp": 1})
    run.start()
    for step in (1, 2):
        take(run, step, STEP)
    return run


def take(run: FailedRun, step: int, messages: list[tuple[str, list[tuple[str, str, str, int]]]]) -> None:
    """Run a step of rank 0 up to its last given message, or the full step if all are given."""
    run.do(0, step, "data")
    for phase, calls in messages:
        run.do(0, step, phase)
        for call in calls:
            run.call(0, call)
    for phase in PHASES[3:]:
        run.do(0, step, phase)


DEVIATIONS = [
    ([("forward", []), *STEP[1:]], "missing", "forward", "send of 4096 bytes over pp"),
    ([*STEP[:3], ("backward", [])], "missing", "backward", "recv of 4096 bytes over pp"),
    ([("forward", [SHORT]), *STEP[1:]], "shape", "forward", "send of 2048 bytes over pp"),
    ([*STEP[:3], ("backward", [RECEIVED, RECEIVED])], "extra", "backward", "recv of 4096 bytes over pp"),
]


@pytest.mark.parametrize(("messages", "kind", "phase", "call"), DEVIATIONS)
def test_step_with_different_messages_is_diagnosed(
    run: FailedRun, messages: list, kind: str, phase: str, call: str
) -> None:  # type: ignore[type-arg]
    take(run, 3, messages)
    run.lose(0, 1, cause="timed_out", after_s=10)
    result = found(run)
    assert (*place(result), result.collective) == (kind, 0, 3, phase, call)
    assert result.certain


def test_wrong_message_size_is_found_without_failure(run: FailedRun) -> None:
    take(run, 3, [("forward", [SHORT]), *STEP[1:]])
    run.complete(step=3)
    result = found(run, 0)
    assert (*place(result), result.outcome) == ("shape", 0, 3, "forward", "completed")


def test_interrupted_step_is_not_a_deviation(run: FailedRun) -> None:
    run.do(0, 3, "data")
    run.do(0, 3, "forward")
    run.call(0, SENT)
    run.fail(0, KeyError("pond"))
    run.lose(1)
    assert place(found(run))[0] == "raise"


def test_evaluation_messages_are_compared_separately(run: FailedRun) -> None:
    for step in (3, 4):
        take(run, step, STEP)
        run.do(0, step, "evaluate", SENT, SENT)
    run.enter(0, 5, "evaluate")
    run.call(0, SENT)
    run.fail(0, KeyError("pond"))
    run.lose(1)
    assert place(found(run))[0] == "raise"


def test_missing_ring_shift_is_diagnosed(tmp_path: Path) -> None:
    """All shifts are equal: the phase shows which one was skipped."""
    run = FailedRun(tmp_path / "run", 2, mesh={"dp": 1, "cp": 2})
    run.start()
    for step, turns in ((1, 2), (2, 2), (3, 1)):
        run.do(1, step, "data")
        run.do(1, step, "forward", *[SHIFTED] * turns)
        run.do(1, step, "backward", *[SHIFTED] * 2)
        run.do(1, step, "reduce")
    run.lose(0, 1, cause="timed_out", after_s=10)
    assert place(found(run)) == ("missing", 1, 3, "forward")


def test_awaited_rank_is_named_without_an_earlier_step(tmp_path: Path) -> None:
    """The other rank lost its connection only when the first one timed out."""
    run = FailedRun(tmp_path / "run", 2, mesh={"pp": 2, "dp": 1})
    run.start()
    run.up_to(1, 1, "forward")
    run.up_to(0, 1, "backward")
    run.fail(1, lost(RECEIVED, 1, 10, "timed_out", peer=0), 10)
    run.fail(0, lost(RECEIVED, 0, 10, peer=1), 10.1)
    result = found(run)
    assert (*place(result), result.certain) == ("stuck", 0, 1, "backward", False)

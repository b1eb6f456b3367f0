"""Numeric arguments: a command rejects numbers out of range before it does anything."""

from __future__ import annotations

import pytest

from frog.cli import main

WHOLE = [
    "bundle --nodes 0",
    "bundle --ranks-per-node 0",
    "chaos --threads 0",
    "finetune --batch-size 0",
    "finetune --epochs 0",
    "learn dev check --times 0",
    "learn dev check --workers 0",
    "profile --nproc 0",
    "profile --steps 0",
    "profile --threads 0",
    "prove --world -1",
    "quiz --count 0",
    "run --nproc 0",
    "run --threads -1",
    "strategies --world 0",
    "submit --cpus 0",
    "submit --nodes 0",
    "submit --ranks-per-node -2",
]
FROM_ZERO = ["logs --tail -1", "run --replace -1", "run --restarts -1", "submit --restarts -1"]


def refusal(capsys: pytest.CaptureFixture[str], command: str) -> str:
    """Return the last line that a command with invalid arguments prints."""
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("command", "least"), [(c, 1) for c in WHOLE] + [(c, 0) for c in FROM_ZERO])
def test_counts_below_the_minimum_are_rejected(capsys: pytest.CaptureFixture[str], command: str, least: int) -> None:
    _, option, value = command.rsplit(maxsplit=2)
    assert refusal(capsys, command).endswith(f"error: argument {option}: {value}: must be at least {least}")


@pytest.mark.parametrize("value", ["1e-10", "2e9", "inf", "nan"])
def test_times_out_of_range_are_rejected(capsys: pytest.CaptureFixture[str], value: str) -> None:
    message = f"error: argument --weight-time: {value}: must be between 1e-9 and 1e9"
    assert refusal(capsys, f"schedule --weight-time {value}").endswith(message)
    assert refusal(capsys, "schedule --send-time -1").endswith("--send-time: -1: must be between 0 and 1e9")


def test_words_that_are_not_numbers_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "run --nproc two").endswith("error: argument --nproc: invalid int value: 'two'")
    assert refusal(capsys, "schedule --send-time x").endswith("error: argument --send-time: invalid float value: 'x'")

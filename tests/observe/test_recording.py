"""`frog.record`: the events that a program's own numbers become."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import LIMIT_S

import frog
from frog.core.runs.event_schema import EndEvent, StartEvent, StepEvent
from frog.core.runs.folder import RunFolder
from frog.core.runs.history import read_history
from frog.core.runs.read import read_rank
from frog.observe.record import Recorder


def enter_rank(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int = 0, world_size: int = 1) -> None:
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    for name, value in {**values, "FROG_RUN_DIR": folder}.items():
        monkeypatch.setenv(name, str(value))


def add(recorder: Recorder, step: int, tokens: int | None = None, samples: list[int] | None = None, **own: Any) -> None:
    recorder.add(step, {"loss": None, "grad_norm": None, "learning_rate": None, **own}, tokens, samples)


def steps_of(folder: Path, rank: int = 0) -> list[StepEvent]:
    return read_rank(RunFolder(folder), rank).of(StepEvent)


def test_recorded_step_has_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_rank(monkeypatch, tmp_path, rank=1, world_size=2)
    recorder = Recorder()
    add(recorder, 8, loss=2.5, grad_norm=torch.tensor(0.5, requires_grad=True), tokens=64, samples=[3, 1])
    add(recorder, 9, loss=torch.tensor([2.25]), learning_rate=np.float32(0.125), tokens=64)
    recorder.close()
    events = read_rank(RunFolder(tmp_path), 1)
    start = events.of(StartEvent)[0]
    assert (start.step, start.rank, start.world_size, start.pid) == (7, 1, 2, os.getpid())
    first, second = events.of(StepEvent)
    assert (first.step, first.loss, first.grad_norm, first.sample_ids, first.tokens) == (8, 2.5, 0.5, [3, 1], 64)
    assert (second.loss, second.learning_rate, second.sample_ids) == (2.25, 0.125, [])
    assert first.tokens_per_s is None, "the time of the first step is unknown"
    assert second.tokens_per_s is not None
    assert second.tokens_per_s > 0
    assert [event.status for event in events.of(EndEvent)] == ["completed"]
    assert events.problems == []


def test_number_that_is_not_finite_is_recorded_as_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_rank(monkeypatch, tmp_path)
    recorder = Recorder()
    add(recorder, 1, loss=float("nan"), grad_norm=torch.tensor(float("inf")))
    recorder.close()
    assert [(event.loss, event.grad_norm) for event in steps_of(tmp_path)] == [(None, None)]


class OnGpu:
    """A number on a device other than the CPU, which counts how often it is read."""

    device = torch.device("cuda", 0)
    num_reads = 0

    def __float__(self) -> float:
        OnGpu.num_reads += 1
        return 1.5


def test_number_on_a_gpu_is_read_at_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_rank(monkeypatch, tmp_path)
    recorder = Recorder()
    add(recorder, 1, loss=OnGpu())
    assert (OnGpu.num_reads, steps_of(tmp_path)) == (0, [])
    add(recorder, 2, loss=OnGpu())
    assert (OnGpu.num_reads, [event.loss for event in steps_of(tmp_path)]) == (1, [1.5])
    recorder.close()
    assert [event.step for event in steps_of(tmp_path)] == [1, 2]


def test_recording_without_a_run_folder_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_rank(monkeypatch, tmp_path)
    monkeypatch.delenv("FROG_RUN_DIR")
    add(Recorder(), 1, loss=2.0)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written_ends_the_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("a file")
    enter_rank(monkeypatch, tmp_path / "run")
    recorder = Recorder()
    add(recorder, 1, loss=2.0)
    add(recorder, 2, loss=2.0)
    message = capsys.readouterr().err
    assert message.startswith("frog.record stopped; the program continues: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": torch.zeros(3)}, "loss must be a number or a tensor with one element"),
        ({"grad_norm": "large"}, "grad_norm must be a number or a tensor with one element"),
        ({"samples": ["a"]}, "samples must be integers, not str"),
    ],
)
def test_value_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    enter_rank(monkeypatch, tmp_path)
    monkeypatch.setattr("frog.observe.record.RECORDER", recorder := Recorder())
    with pytest.raises(ValueError, match=message):
        frog.record(1, **given)
    recorder.close()


@pytest.mark.parametrize(("words", "status"), [("", "completed"), ("raise KeyError(1)", "failed")])
def test_end_of_a_program_is_recorded(tmp_path: Path, words: str, status: str) -> None:
    code = f"import os, frog\nfrog.record(1, loss=3.0)\nif os.fork() == 0:\n    frog.record(2); os._exit(0)\n{words}"
    env = {**os.environ, "FROG_RUN_DIR": str(tmp_path), "RANK": "0", "WORLD_SIZE": "1"}
    subprocess.run([sys.executable, "-c", code], env=env, timeout=LIMIT_S, capture_output=True)
    events = read_rank(RunFolder(tmp_path), 0)
    assert [event.step for event in events.of(StepEvent)] == [1], "a forked process is not the rank"
    assert [event.status for event in events.of(EndEvent)] == [status]


@pytest.mark.parametrize(("tokens", "mean"), [((None, None), 1.5), ((30, 10), 1.75), ((30, None), 1.5)])
def test_mean_loss_is_that_of_the_ranks_or_of_their_tokens_in_steps_that_all_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[int | None, ...], mean: float
) -> None:
    for rank, losses in enumerate(([4.0, 2.0, 1.0], [2.0, 1.0])):
        enter_rank(monkeypatch, tmp_path, rank, 2)
        recorder = Recorder()
        for step, loss in enumerate(losses, start=1):
            add(recorder, step, tokens[rank] if step == 2 else None, loss=loss)
        recorder.close()
    main = read_history(RunFolder(tmp_path)).main
    assert main is not None
    np.testing.assert_equal(main.scalars["loss_mean"], [3.0, mean, np.nan])

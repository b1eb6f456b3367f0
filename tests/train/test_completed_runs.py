"""What was achieved outlives every command on it, broken off at any change that it makes to the disk.

What writes into the folder of a completed run, or may stand in for what lies there:

    frog train --resume      run.json, record.json or attempt.json, checkpoints, events, heartbeats, logs
                             (starts that fail or are killed: test_record.py; the files themselves: here)
    frog finetune --resume   the same, and adapter/
    frog report, tensorboard report.html, tensorboard/
    frog data prepare --force, of the run's data set
    frog import              a run of its own name, never one that is there
    frog train, profile, finetune, chaos: runs of names that are free, or the campaign's own chaos-SEED-N
    frog eval, sample, checkpoints, compare, diagnose, logs, runs, export: nothing of the run's
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Harness
from in_process import train, write_run

from frog.checkpoint import find_good
from frog.cli import main
from frog.config import ModelConfig
from frog.config.finetune import LoraConfig
from frog.core.runfolder import RunFolder
from frog.data import open_prepared
from frog.model import TinyTransformer
from frog.model.adapter import load_adapter, save_adapter
from frog.model.lora import add_lora, trained_parameters
from frog.train import trained
from frog.train.runfile import write_end, write_failure

SIZES = ModelConfig(11, 8, 16, 1, 2, 2, 24)
CHANGES = ("fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir")
"""Calls of the system that change a disk, or say that it is to be changed."""


class Killed(BaseException):
    """Nothing comes after it."""


@contextlib.contextmanager
def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """As the disk is to be changed for the `moment`-th time all ends, cleaning up included; yields the changes."""
    done: list[str] = []

    def or_killed(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def due(*args: Any, **options: Any) -> Any:
            done.append(name)
            if len(done) > moment:
                raise Killed
            return act(*args, **options)

        return due

    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, or_killed(name, getattr(os, name)))
        with contextlib.suppress(Killed):
            yield done


def at_each_moment(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Do it, killed at its first change, at its second, ... and at last to its end; yields after each."""
    for moment in range(200):
        with killed_at(moment, monkeypatch) as done:
            act()
        yield moment
        if len(done) <= moment:
            assert done, "it changes nothing"
            return
    raise AssertionError("it never comes to its end")


@pytest.mark.parametrize(("status", "step"), [("completed", 12), ("completed", 8), ("interrupted", 6)])
def test_the_end_of_a_later_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, step: int) -> None:
    folder = RunFolder(tmp_path)
    write_run(folder, 1)
    write_end(folder, {"status": "completed", "step": 8})
    before = folder.record_json.read_bytes()
    write_run(folder, 2)
    for _ in at_each_moment(lambda: write_end(folder, {"status": status, "step": step}), monkeypatch):
        achieved = folder.read_achieved()
        assert achieved is not None
        assert achieved.status == "completed"
        assert folder.record_json.read_bytes() == before or achieved.step == step >= 8
        assert len(folder.read_run_json().segments) == 2


def test_the_failure_of_a_later_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    write_run(folder, 1)
    write_end(folder, {"status": "completed", "step": 8})
    before = folder.record_json.read_bytes()
    error = {"type": "E", "message": "no", "rank": 0, "step": 9}
    for _ in at_each_moment(lambda: write_failure(folder, 9, error, replace=True), monkeypatch):
        assert folder.record_json.read_bytes() == before
        folder.read_record()


def test_an_adapter_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is always one: the old, which may have been put aside, or the new."""
    lora, folder = LoraConfig(2, 4, ("q_proj",)), RunFolder(tmp_path)

    def save(value: float) -> None:
        model = TinyTransformer(SIZES)
        add_lora(model, lora)
        for parameter in trained_parameters(model).values():
            parameter.data.fill_(value)
        save_adapter(model, lora, folder.adapter, base="base", labels=[], replace=True)

    def found() -> float:
        model = TinyTransformer(SIZES)
        load_adapter(model, trained.whole_adapter(folder))
        (value,) = {parameter.mean().item() for parameter in trained_parameters(model).values()}
        return value

    save(1.0)
    seen = []
    for _ in at_each_moment(lambda: save(2.0), monkeypatch):
        seen.append(found())
    assert set(seen) == {1.0, 2.0}
    assert seen == sorted(seen)
    save(3.0)  # whatever the last one left
    assert found() == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_a_data_set_that_is_prepared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run can go on with the old one or the new, and not with none: the old one used to lie in a folder of another
    name, which the next preparation removed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.md").write_text("3 frogs sat on a log; one jumped, and two sang. " * 100)
    words = ["data", "prepare", "--corpus", "text.md", "--name", "a", "--force", "--vocab-size"]
    assert main([*words, "270"]) == 0
    seen = []
    for _ in at_each_moment(lambda: main([*words, "280"]), monkeypatch):
        seen.append(open_prepared("a", verify=True).vocab_size)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (270, 280)


# ---- commands on a run that is there ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(harness: Harness) -> Harness:
    """The harness with a completed run."""
    assert train(harness, "run.toml", "--set", "name=one", "--set", "eval.sample_tokens=0") == 0
    return harness


COMMANDS = ("report one", "tensorboard one", "export one --to hf out", "eval one", "sample one --tokens 2",
            "checkpoints one", "compare one one", "diagnose one", "logs one", "runs", "import out --from hf --name one",
            "train --resume one --set model.hidden_size=64")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_leaves_what_was_achieved(
    one: Harness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(one.root)
    folder = one.folder("one")
    kept = [folder.record_json, folder.run_json, folder.tokenizer_json, *sorted(folder.checkpoints.rglob("*.*"))]
    before = [path.read_bytes() for path in kept if path.is_file()]
    for moment in (1000, *range(12)):  # first to its end: then all is imported
        with killed_at(moment, monkeypatch), contextlib.suppress(SystemExit):
            if command.startswith("train"):
                train(one, *command.split()[1:])
            else:
                main(command.split())
        capfd.readouterr()
        assert [path.read_bytes() for path in kept if path.is_file()] == before
        good, passed_over = find_good(folder)
        assert good is not None
        assert (good.step, passed_over) == (8, [])

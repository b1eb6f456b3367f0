"""The results of a run survive every command, even one that is killed at any change to the disk.

Commands that write to the folder of a completed run, or might replace it:

    frog train --resume      run.json, record.json or attempt.json, checkpoints, events, heartbeats, logs
                             (starts that fail: test_record.py)
    frog finetune --resume   the same, and adapter/
    frog report, tensorboard report.html, tensorboard/
    frog data prepare --force on the run's data set
    frog import              a run with a new name, never an existing one
    frog train, profile, finetune, chaos, run: runs with unused names, or the campaign's chaos-SEED-N
    frog chaos -- train --resume  as train --resume does
    frog eval, sample, checkpoints, compare, diagnose, logs, runs, export: nothing in the run's folder
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Harness, set_words
from in_process import train, tune, write_run
from safetensors.torch import load_file

from frog.cli import main
from frog.core.config import ModelConfig
from frog.core.config.finetune import LoraConfig
from frog.core.runs.folder import RunFolder
from frog.train import trained
from frog.train.checkpoint import find_good
from frog.train.data import open_prepared
from frog.train.model import TinyTransformer
from frog.train.model.adapter import WEIGHTS_FILE, load_adapter, save_adapter
from frog.train.model.lora import add_lora, trained_parameters
from frog.train.record import write_end, write_failure

SIZES = ModelConfig(11, 8, 16, 1, 2, 2, 24)
CHANGES = ("fsync", "replace", "rename", "link", "unlink", "rmdir", "mkdir")
"""System calls that change the disk, or announce a change."""


class Killed(BaseException):
    """Simulates SIGKILL: no code handles it."""


@contextlib.contextmanager
def killed_at(moment: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Stop all code, including cleanup, at the `moment`-th change of the disk; yield the changes."""
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
    """Run an action, killed at its first change, its second, ... and finally to its end; yield after each."""
    for moment in range(200):
        with killed_at(moment, monkeypatch) as done:
            act()
        yield moment
        if len(done) <= moment:
            assert done, "the function changes nothing on the disk"
            return
    raise AssertionError("the function never ends")


@pytest.mark.parametrize(("status", "step"), [("completed", 12), ("completed", 8), ("interrupted", 6)])
def test_later_start_that_completes_keeps_a_readable_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, step: int
) -> None:
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


def test_later_start_that_fails_keeps_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    write_run(folder, 1)
    write_end(folder, {"status": "completed", "step": 8})
    before = folder.record_json.read_bytes()
    error = {"type": "E", "message": "no", "rank": 0, "step": 9}
    for _ in at_each_moment(lambda: write_failure(folder, 9, error, replace=True), monkeypatch):
        assert folder.record_json.read_bytes() == before
        folder.read_record()


def test_replacing_an_adapter_never_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old adapter, possibly moved aside, or the new one always exists."""
    lora, folder = LoraConfig(2, 4, ("q_proj",)), RunFolder(tmp_path)

    def save(value: float) -> None:
        model = TinyTransformer(SIZES)
        add_lora(model, lora)
        for parameter in trained_parameters(model).values():
            parameter.data.fill_(value)
        save_adapter(model, lora, folder.adapter, base="base", labels=[], replace=True)

    def found() -> float:
        model = TinyTransformer(SIZES)
        load_adapter(model, trained.complete_adapter(folder))
        (value,) = {parameter.mean().item() for parameter in trained_parameters(model).values()}
        return value

    save(1.0)
    seen = []
    for _ in at_each_moment(lambda: save(2.0), monkeypatch):
        seen.append(found())
    assert set(seen) == {1.0, 2.0}
    assert seen == sorted(seen)
    save(3.0)  # after any leftovers of the last attempt
    assert found() == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_preparing_a_set_again_never_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run can continue with the old set or the new one. Previously, the old one could be lost in a folder with
    another name, which the next preparation deleted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.md").write_text("3 frogs sat on a log; one jumped, and two sang. " * 100)
    words = ["data", "prepare", "--corpus", "text.md", "--name", "a", "--force", "--vocab-size"]
    assert main([*words, "270"]) == 0
    seen = []
    for _ in at_each_moment(lambda: main([*words, "280"]), monkeypatch):
        seen.append(open_prepared("a", verify=True).vocab_size)
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (270, 280)


# ---- commands on an existing run ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(harness: Harness) -> Harness:
    """Return the harness with a completed run."""
    assert train(harness, "run.toml", "--set", "name=one", "--set", "eval.sample_tokens=0") == 0
    return harness


COMMANDS = ("report one", "tensorboard one", "export one --to hf out", "eval one", "sample one --tokens 2",
            "checkpoints one", "compare one one", "diagnose one", "logs one", "runs", "import out --from hf --name one",
            "train --resume one --set model.hidden_size=64", "train --resume one",
            "data prepare --corpus rhymes.txt --name rhymes --vocab-size 300")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_command_keeps_the_completed_run(
    one: Harness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(one.root)
    before = achievement(one)
    for moment in range(1000):
        with killed_at(moment, monkeypatch) as done, contextlib.suppress(SystemExit):
            if command.startswith("train"):
                train(one, *command.split()[1:])
            else:
                main(command.split())
        capfd.readouterr()
        assert achievement(one) == before
        if len(done) <= moment:
            break


@pytest.mark.slow
def test_killed_world_command_keeps_the_completed_run(one: Harness) -> None:
    before = achievement(one)
    one.run("frog", "profile", "run.toml", "--steps", "1", "--name", "one")
    assert achievement(one) == before
    fault = ("--fault", "raise rank=0 step=1")
    one.run("frog", "chaos", *fault, "--nproc", "1", "--", "train", "--resume", "one", code=1)  # no steps remain
    assert achievement(one) == before


def achievement(one: Harness) -> list[bytes]:
    """Return the results of a completed run of 8 steps, byte for byte."""
    folder = one.folder("one")
    good, passed_over = find_good(folder)
    assert good is not None
    assert (good.step, passed_over) == (8, [])
    kept = [folder.record_json, folder.run_json, folder.tokenizer_json, *sorted(folder.checkpoints.rglob("*.*"))]
    return [path.read_bytes() for path in kept if path.is_file()]


# ---- a completed run that is extended -----------------------------------------------------------------------------


def ends_at(moment: int, act: Callable[[], object]) -> bool:
    """Run it in a child process, which ends at the `moment`-th change of the disk.

    Returns: True if it ended before that.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    left = itertools.count(moment, -1)

    def or_ends(change: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: change(*args, **options) if next(left) > 0 else os._exit(137)

    torch.set_num_threads(1)
    for name in CHANGES:
        setattr(os, name, or_ends(getattr(os, name)))
    with contextlib.suppress(BaseException):
        os._exit(0 if act() == 0 else 1)
    os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "tuned"])
def test_resumed_run_never_loses_progress(one: Harness, name: str, tmp_path: Path) -> None:
    """The run is extended, and killed at each change of the disk."""
    folder = one.folder(name)
    if name == "tuned" and not folder.path.exists():
        lines = [{"text": f"{n} {verb}", "label": verb} for n in range(9) for verb in ("sang", "sat")]
        (one.root / "who.jsonl").write_text("\n".join(map(json.dumps, lines)))
        words = ("one", "--data", "who.jsonl", "--epochs", "1", "--batch-size", "8", "--set", "checkpoint.every=1")
        assert tune(one, *words, "--name", name) == 0

    def go_on() -> int:
        if name == "one":
            return train(one, "--resume", name, *set_words("train.steps=10"))
        return tune(one, "--resume", name, "--epochs", "2")

    shutil.copytree(folder.path, tmp_path / "before")
    before, step = folder.record_json.read_bytes(), folder.read_record().step  # type: ignore[union-attr]
    steps = set()
    for moment in range(1000):
        shutil.rmtree(folder.path)
        shutil.copytree(tmp_path / "before", folder.path)
        ended = ends_at(moment, go_on)
        achieved = folder.read_achieved()
        assert achieved is not None
        assert achieved.status == "completed"
        assert folder.record_json.read_bytes() == before or achieved.step > step
        good, passed_over = find_good(folder)
        assert good is not None
        assert (good.step >= step, passed_over) == (True, [])
        if name == "tuned":
            assert load_file(trained.complete_adapter(folder) / WEIGHTS_FILE)
        steps.add((achieved.step, good.step))
        if ended:
            break
    assert len(steps) > 2, "the process was never killed midway"
    assert moment > 10
    shutil.rmtree(folder.path)
    shutil.copytree(tmp_path / "before", folder.path)

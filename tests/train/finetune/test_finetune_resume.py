"""A fine-tuning run that resumes after a failure, a stop or a kill equals an undisturbed one."""

from __future__ import annotations

import json
import math
import signal
from typing import Any

import pytest
import torch
from harness import Harness, set_words
from in_process import meet_faults, train, tune, write_faults
from safetensors.torch import load_file

from frog.core.runs.event_schema import StartEvent, StepEvent
from frog.measure.chaos.sandbox import faults_env
from frog.train.data.labelled_batches import LabelledBatches
from frog.train.model.adapter import WEIGHTS_FILE

pytestmark = pytest.mark.slow

LINES = [(f"{n} frogs sang of the pond", "sang") for n in range(18)] + [
    (f"{n} sat, {n} jumped", "sat") for n in range(18)
]
WORDS = ("base", "--data", "who.jsonl", "--epochs", "3", "--batch-size", "8", "--set", "checkpoint.every=1")
NUMBERS = ("status", "step", "loss", "eval", "classification", "weights_sha256", "order_sha256", "tokens")


@pytest.fixture(scope="module")
def here(harness: Harness) -> Harness:
    """Return the harness with a base, labelled lines, and an undisturbed fine-tuning run."""
    assert train(harness, "run.toml", *set_words("name=base", "eval.sample_tokens=0")) == 0
    lines = [json.dumps({"text": text, "label": label}) for text, label in LINES]
    (harness.root / "who.jsonl").write_text("\n".join(lines))
    assert tune(harness, *WORDS, "--name", "tuned") == 0
    return harness


def fault(kind: str, rank: int, step: int, phase: str) -> dict[str, Any]:
    return {"kind": kind, "rank": rank, "step": step, "phase": phase}


def same(here: Harness, name: str, calm: str) -> None:
    """Compare adapter, optimizer moments, losses and text order bit for bit."""
    assert [here.record(name)[key] for key in NUMBERS] == [here.record(calm)[key] for key in NUMBERS]
    mine, theirs = here.folder(name), here.folder(calm)
    pairs = [(mine.adapter / WEIGHTS_FILE, theirs.adapter / WEIGHTS_FILE)]
    for path in sorted(theirs.checkpoint(here.record(calm)["step"]).glob("*.safetensors")):
        pairs.append((mine.checkpoint(here.record(name)["step"]) / path.name, path))
        assert any("optimizer/exp_avg_sq" in key for key in load_file(path))
    for found, expected in (map(load_file, pair) for pair in pairs):
        assert found.keys() == expected.keys()
        assert all(found[key].equal(tensor) for key, tensor in expected.items() if not key.startswith("rank_"))


def test_finetune_checkpoint_has_only_trained_parameters(here: Harness) -> None:
    record = here.record("tuned")
    manifest = json.loads((here.folder("tuned").checkpoint(record["step"]) / "manifest.json").read_text())
    shapes = {name: entry["shape"] for name, entry in manifest["tensors"].items() if name.startswith("model/")}
    assert all("lora_" in name or name == "model/score.weight" for name in shapes)
    assert sum(map(math.prod, shapes.values())) == record["num_trained_parameters"]


@pytest.mark.parametrize("phase", ["forward", "optimize", "evaluate", "checkpoint"])
def test_failed_finetuning_resumes(here: Harness, phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = here.record("tuned")["step"] // 3 * 2  # the last step of the second epoch, which is then scored
    name = f"failed-{phase}"
    path = write_faults(here.root / f"{name}.toml", fault("raise", 0, step, phase))
    meet_faults(monkeypatch, path)
    assert tune(here, *WORDS, "--name", name) == 1
    assert (here.record(name)["status"], here.record(name)["step"]) == ("failed", step)
    torch.manual_seed(5)  # as in a new process, with a fresh generator
    assert tune(here, "--resume", name) == 0
    assert 0 < here.events(name).main.of(StartEvent)[1].step <= step
    same(here, name, "tuned")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_finetuning_resumes(
    here: Harness, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The signal arrives in the middle of step 6, which is in the middle of an epoch."""
    name, make = f"stopped-{number.name}", LabelledBatches._batch

    def make_and_signal(self: LabelledBatches, step: int, ids: Any) -> Any:
        if step == 6:
            signal.raise_signal(number)
        return make(self, step, ids)

    with monkeypatch.context() as patch:
        patch.setattr(LabelledBatches, "_batch", make_and_signal)
        assert tune(here, *WORDS, "--name", name) == 128 + number
    out = capfd.readouterr().out
    assert f"stopped at step 6, saved at step 6; resume with: frog finetune --resume runs/{name}" in out
    assert here.record(name)["status"] == "interrupted"
    assert tune(here, "--resume", name) == 0
    assert "resumed at step 6" in capfd.readouterr().out
    same(here, name, "tuned")


def test_continue_starts_resumes_and_recognizes_a_completed_run(
    here: Harness, capfd: pytest.CaptureFixture[str]
) -> None:
    for last in ("done: ", "already completed its", "already completed its"):
        assert tune(here, *WORDS, "--name", "continued", "--continue") == 0
        assert last in capfd.readouterr().out.splitlines()[-1]
    same(here, "continued", "tuned")


def test_resumed_finetuning_accepts_more_epochs(here: Harness) -> None:
    assert tune(here, *WORDS, "--name", "longer") == 0
    assert tune(here, "--resume", "longer", "--epochs", "4") == 0
    record = here.record("longer")
    assert (record["status"], record["step"]) == ("completed", here.record("tuned")["step"] // 3 * 4)
    assert here.folder("longer").read_run_json().finetune["epochs"] == 4  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to fine-tune"),
        (("base", "--resume", "tuned"), "--resume tuned with run: a resumed run keeps its own settings"),
        (("--resume", "tuned", "--lora", "rank=2"), "--resume tuned with lora"),
        (("--resume", "tuned", "--continue"), "--resume cannot be combined with --continue"),
        (
            ("--resume", "base"),
            "runs/base is not a fine-tuned run\n  try: resume it with: frog train --resume runs/base",
        ),
        (("--resume", "tuned", "--set", "train.steps=3"), "--epochs sets the steps"),
    ],
)
def test_invalid_finetune_resume_raises_an_error(
    here: Harness, words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert tune(here, *words) == 2
    assert message in capfd.readouterr().err


def test_resume_with_changed_data_raises_run_error(here: Harness, capfd: pytest.CaptureFixture[str]) -> None:
    record = here.folder("tuned").record_json.read_bytes()
    assert tune(here, *WORDS, "--name", "tuned", "--continue", "--lora", "rank=2", "--epochs", "4") == 2
    assert "runs/tuned started with lora" in capfd.readouterr().err
    assert train(here, "--resume", "tuned") == 2
    hint = "runs/tuned is a fine-tuned run\n  try: resume it with: frog finetune --resume runs/tuned"
    assert hint in capfd.readouterr().err
    data = here.root / "who.jsonl"
    data.write_text(data.read_text() + "\n" + json.dumps({"text": "a frog sang", "label": "sang"}))
    assert tune(here, "--resume", "tuned") == 2
    data.write_text("\n".join(data.read_text().splitlines()[:-1]))
    assert "runs/tuned started on data set who" in capfd.readouterr().err
    assert here.folder("tuned").record_json.read_bytes() == record


def test_world_with_a_nan_and_a_kill_ends_like_an_undisturbed_one(here: Harness) -> None:
    """Real processes: the error names rank 1, which has a NaN; later it is killed; each time the world restarts."""
    world = ("frog", "run", "--nproc", "2", "--threads", "1")
    here.run(*world, "--", "finetune", *WORDS, "--name", "tuned-by-two")
    path = here.root / "unlucky.toml"
    write_faults(path, fault("nan", 1, 4, "backward"), fault("kill", 1, 6, "reduce"))
    env = faults_env(path)
    here.run(*world, "--restarts", "2", "--", "finetune", *WORDS, "--name", "unlucky", env=env)
    ids = here.events("tuned-by-two").ranks[1].by_step(StepEvent)[4].sample_ids
    told = here.folder("unlucky").rank_log(0).read_text()
    assert "step 4: the loss or the gradient is not finite" in told
    assert f"gradient norm nan, samples {ids}" in told
    assert "rank 1: loss" in told
    assert "rank 0: loss" not in told
    starts = [segment.from_step for segment in here.folder("unlucky").read_run_json().segments]
    assert len(starts) == 3
    assert all(start <= most for start, most in zip(starts, (0, 3, 5), strict=True))  # a checkpoint may come too late
    same(here, "unlucky", "tuned-by-two")
    achieved = here.folder("tuned").read_achieved()
    assert achieved is not None
    assert here.record("tuned-by-two")["order_sha256"] == achieved.order_sha256

"""DiLoCo and ddp in 8 bits in real runs: traffic, the weights that count, and exact resumption."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from harness import Harness, set_words
from in_process import train
from many_runs import WORKER, train_many

from frog.core.config import from_dict
from frog.core.files import remove
from frog.core.runs.event_schema import CollectiveEvent, EvalEvent, StepEvent
from frog.plan.measure import traffic_problems
from frog.train.checkpoint.load import open_checkpoint

SETTINGS = ("strategy.name=diloco", "strategy.inner_steps=4", "eval.every=2", "eval.sample_tokens=0")
COMPRESSIONS = ("off", "int8")
PLAIN = ("eval.sample_tokens=0",)
NAMES = ("d-off", "d-int8", "ddp-int8")


@pytest.fixture(scope="module")
def runs(harness: Harness) -> Harness:
    apart = {f"d-{name}": (*SETTINGS, f"strategy.compression={name}") for name in COMPRESSIONS}
    train_many(harness, 2, {**apart, "ddp-off": PLAIN, "ddp-int8": (*PLAIN, "strategy.compression=int8")})
    return harness


def cut_off(harness: Harness, name: str, target: str, step: int) -> Path:
    """Copy a run as if it had been killed after the checkpoint of a step."""
    path = harness.root / "runs" / target
    shutil.copytree(harness.folder(name).path, path, symlinks=True)
    folder = harness.folder(target)
    for later in folder.checkpoint_steps():
        if later > step:
            remove(folder.checkpoint(later))
    folder.record_json.unlink()
    return path


def weights(harness: Harness, name: str, step: int) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(harness.folder(name).checkpoint(step))
    named = {key: torch.empty(entry.shape) for key, entry in checkpoint.manifest.tensors.items() if "model/" in key}
    checkpoint.load_into(named)
    return named


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_diloco_traffic_matches_the_formulas(runs: Harness, name: str) -> None:
    """DiLoCo sends at the end of a round, and nothing within it."""
    config = from_dict(runs.folder(name).read_run_json().config)
    for events in runs.events(name).ranks.values():
        for step in range(1, 9):
            assert traffic_problems(config, 2, events, step) == []
        sizes = [one.payload_bytes for one in events.of(CollectiveEvent) if one.axis == "dp" and one.step in (4, 8)]
        assert max(sizes) > 10_000


@pytest.mark.slow
def test_8_bit_gradients_train_equally_well(runs: Harness) -> None:
    plain, compressed = runs.record("ddp-off"), runs.record("ddp-int8")
    assert compressed["order_sha256"] == plain["order_sha256"]
    assert compressed["weights_sha256"] != plain["weights_sha256"]
    assert compressed["loss"] == pytest.approx(plain["loss"], rel=1e-2)


@pytest.mark.slow
def test_diloco_ranks_differ_within_a_round(runs: Harness) -> None:
    first, second = (rank.by_step(StepEvent) for rank in runs.events("d-off").ranks.values())
    for step in range(1, 9):
        assert (first[step].loss_mean == second[step].loss_mean) == (step in (4, 8))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPRESSIONS)
def test_diloco_evaluates_the_outer_weights_within_a_round(runs: Harness, name: str) -> None:
    run = f"d-{name}"
    scores = {event.step: event.loss for event in runs.events(run).main.of(EvalEvent)}
    assert scores[2] == scores[0]
    assert scores[6] == scores[4] != scores[2]
    before, within, after = (weights(runs, run, step) for step in (4, 6, 8))
    assert all(torch.equal(before[key], within[key]) for key in before)
    assert not all(torch.equal(after[key], within[key]) for key in after)


@pytest.mark.slow
def test_diloco_run_resumes_bit_for_bit(runs: Harness) -> None:
    """This includes the middle of a round, when weights, moments and errors differ between the ranks."""
    for name in NAMES:
        cut_off(runs, name, f"{name}-again", step=6)
    path = runs.root / "again.json"
    path.write_text(json.dumps([["--resume", f"runs/{name}-again"] for name in NAMES]))
    runs.run("frog", "run", "--nproc", "2", "--threads", "1", "--", str(WORKER), str(path))
    for name in NAMES:
        undisturbed, again = runs.record(name), runs.record(f"{name}-again")
        for field in ("loss", "weights_sha256", "order_sha256", "eval"):
            assert again[field] == undisturbed[field], (name, field)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), ("strategy.name=ddp",)])
def test_diloco_run_cannot_resume_in_another_world_within_a_round(
    runs: Harness, settings: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    path = cut_off(runs, "d-off", f"d-within-{len(settings)}", step=6)
    assert train(runs, "--resume", str(path), *set_words(*settings)) == 1
    said = capfd.readouterr().err
    assert "step 6 is in the middle of a DiLoCo round: each of its 2 ranks has different weights" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("settings", [(), ("strategy.name=ddp",)])
def test_diloco_run_resumes_in_any_world_at_the_end_of_a_round(runs: Harness, settings: tuple[str, ...]) -> None:
    target = f"d-end-{len(settings)}"
    path = cut_off(runs, "d-int8", target, step=4)
    assert train(runs, "--resume", str(path), *set_words("strategy.compression=off", *settings)) == 0
    assert runs.record(target)["order_sha256"] == runs.record("d-int8")["order_sha256"]


@pytest.mark.slow
def test_ddp_run_resumes_under_diloco(runs: Harness) -> None:
    assert train(runs, "run.toml", *set_words("name=d-from-ddp", "train.steps=2")) == 0
    path = str(runs.folder("d-from-ddp").path)
    assert train(runs, "--resume", path, *set_words("train.steps=8", *SETTINGS)) == 0
    assert runs.record("d-from-ddp")["status"] == "completed"

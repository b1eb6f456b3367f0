"""Runs with a strategy of one's own: killed and resumed, moved to another world, with a changed file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import Harness, set_words
from in_process import train
from many_runs import train_many

from frog.core.runs.event_schema import CollectiveEvent, MemoryEvent, StepEvent

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "config" / "own_zero1.py", *sorted((ROOT / "tests/train/parallel/own_strategies").glob("*.py"))]
BATCH = "train.global_batch_size=12"
SAME = ("weights_sha256", "order_sha256", "step", "loss", "eval")
"""Fields of a run's record that an interruption must not change."""


@pytest.fixture(scope="module")
def here(harness: Harness) -> Harness:
    """Return the harness with the strategies' files and an undisturbed run with one of them, `calm`."""
    for file in FILES:
        shutil.copy(file, harness.root)
    assert "held-out loss" in harness.train(2, "calm", "strategy.file=fsdp.py", BATCH).stdout
    return harness


@pytest.mark.slow
def test_killed_and_restarted_run_is_bitwise_equal_to_the_undisturbed_run(here: Harness) -> None:
    words = ("--nproc", "2", "--threads", "1", "--restarts", "1", "--", "train", "run.toml")
    settings = set_words("name=killed", "strategy.file=fsdp.py", BATCH)
    here.run("frog", "chaos", "--fault", "kill rank=1 step=5 phase=backward", *words, *settings)
    for key in SAME:
        assert here.record("killed")[key] == here.record("calm")[key]
    folder = here.folder("killed")
    assert folder.strategy_py.read_text() == (here.root / "fsdp.py").read_text()
    assert [start.from_step for start in folder.read_run_json().segments] in ([0, 2], [0, 4])


@pytest.mark.slow
def test_shards_and_collectives_of_own_strategy_are_measured(here: Harness) -> None:
    events = here.events("calm")
    whole = 4 * here.folder("calm").read_run_json().num_parameters
    for rank in (0, 1):
        (memory,) = events.ranks[rank].of(MemoryEvent)
        assert whole / 2 <= memory.parameters <= whole / 2 + 64
        assert whole / 2 <= memory.gradients <= whole / 2 + 64
        assert len(events.ranks[rank].by_step(StepEvent)) == 8
        own = [one for one in events.ranks[rank].of(CollectiveEvent) if one.step == 2 and one.axis == "dp"]
        scattered = sum(one.payload_bytes for one in own if one.op == "reduce_scatter")
        assert whole <= scattered <= whole + 64
        assert all(one.start_ns <= one.end_ns for one in own)


@pytest.mark.slow
def test_resumed_run_is_bitwise_equal_to_the_undisturbed_run(here: Harness) -> None:
    flat = (BATCH, "optimizer.min_learning_rate=3e-3")  # the schedule does not depend on train.steps
    names = [file.stem for file in FILES if file.stem != "fsdp"]
    whole = {f"whole-{name}": (f"strategy.file={name}.py", *flat) for name in names}
    parts = {f"part-{name}": (f"strategy.file={name}.py", *flat, "train.steps=4") for name in names}
    train_many(here, 2, {**whole, **parts}, dict.fromkeys(parts, ("train.steps=8",)))
    for name in names:
        for key in SAME:
            assert here.record(f"part-{name}")[key] == here.record(f"whole-{name}")[key], name


@pytest.mark.slow
def test_run_moves_to_another_world_and_another_strategy(here: Harness) -> None:
    assert train(here, "run.toml", *set_words("name=alone", BATCH)) == 0
    shutil.copytree(here.folder("calm").path, here.folder("moved").path)
    for step in (6, 8):  # as if the run had ended after step 4
        shutil.rmtree(here.folder("moved").checkpoint(step))
    (here.root / "mine.py").write_text((here.root / "zero2.py").read_text())
    words = ("train", "--resume", "runs/moved", *set_words("strategy.file=mine.py"))
    done = here.run("frog", "run", "--nproc", "3", "--threads", "1", "--", *words)
    assert "mine.py has changed since this run's last start; the run continues with the new version" in done.stdout
    assert here.record("moved")["order_sha256"] == here.record("alone")["order_sha256"]
    assert here.record("moved")["loss"] == pytest.approx(here.record("alone")["loss"], rel=1e-5)
    assert here.record("moved")["eval"]["loss"] == pytest.approx(here.record("alone")["eval"]["loss"], rel=1e-5)
    here.run("frog", "train", "--resume", "runs/moved", *set_words("strategy.file=gone.py"), code=2)


@pytest.mark.slow
def test_report_and_diagnosis_name_the_strategy_and_its_line(here: Harness) -> None:
    text = (here.root / "fsdp.py").read_text()
    right = "    def reduce(self):\n"
    (here.root / "wrong.py").write_text(text.replace(right, f"{right}        assert dist.get_rank() == 0, 'no'\n"))
    done = here.train(2, "wrong", "strategy.file=wrong.py", code=1)
    assert "in reduce: AssertionError: no" in done.stderr
    assert "OwnStrategyError: wrong.py:" in here.run("frog", "diagnose", "wrong").stdout
    here.run("frog", "report", "calm")
    report = here.folder("calm").report_html.read_text()
    assert "A strategy of your own, from fsdp.py; no formula knows its memory and its traffic." in report
    assert "By the formula" not in report

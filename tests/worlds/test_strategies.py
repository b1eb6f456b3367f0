"""Strategies in real runs: equal numbers, traffic according to the formulas, checkpoints for any other strategy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness import Harness
from many_runs import train_many

from frog.core.config import from_dict, load_run_config
from frog.core.config.strategies import DATA_STRATEGIES
from frog.core.errors import ConfigError
from frog.core.runs.event_schema import MemoryEvent, SampleEvent, StartEvent, StepEvent
from frog.plan.measure import traffic_problems
from frog.train.prove.matrix import proofs

pytestmark = pytest.mark.slow

RESHARD = Path(__file__).parent / "reshard_worker.py"
MODEL = ("model.num_hidden_layers=4", "model.num_key_value_heads=4")
BATCH = ("train.grad_accum=2", "train.global_batch_size=16")
EXACT = [name for name, entry in DATA_STRATEGIES.items() if not entry.trains_locally]
RUNS = {
    **{f"{name}-2": (2, (f"strategy.name={name}",)) for name in EXACT},
    "overlapped-2": (2, ("strategy.reduction=overlapped", "strategy.bucket_mb=0.05")),
    "tp-2": (2, ("strategy.tp=2",)),
    "cp-2": (2, ("strategy.cp=2",)),
    "pp-2": (2, ("strategy.pp=2",)),
    "zero3-tp-4": (4, ("strategy.name=zero3", "strategy.tp=2")),
    "dp-pp-4": (4, ("strategy.pp=2", "strategy.schedule=zero_bubble")),
    "tp-pp-4": (4, ("strategy.tp=2", "strategy.pp=2")),
    "hybrid-4": (4, ("strategy.name=zero3", "strategy.shard=2")),
}


FLAT_RATE = ("optimizer.min_learning_rate=3e-3",)
"""Otherwise the end of the schedule would depend on train.steps."""


@pytest.fixture(scope="module")
def runs(harness: Harness) -> Harness:
    for world_size, further in (
        (2, {"stayed": (*MODEL, *BATCH, *FLAT_RATE)}),
        (4, {"moved": (*MODEL, *BATCH, *FLAT_RATE, "train.steps=3")}),
    ):
        wanted = {f"s-{name}": (*MODEL, *BATCH, *more) for name, (size, more) in RUNS.items() if size == world_size}
        train_many(harness, world_size, {**wanted, **further})
    return harness


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", RUNS)
def test_run_has_the_same_losses_under_any_strategy(runs: Harness, name: str) -> None:
    expected, found = runs.record("s-ddp-2"), runs.record(f"s-{name}")
    assert found["order_sha256"] == expected["order_sha256"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert found["eval"]["loss"] == pytest.approx(expected["eval"]["loss"], rel=1e-4)
    assert found["eval"]["tokens"] == expected["eval"]["tokens"]
    samples = [runs.events(f"s-{run}").main.of(SampleEvent)[-1].text for run in (name, "ddp-2")]
    assert samples[0][:40] == samples[1][:40]


@pytest.mark.parametrize("name", ["overlapped-2", "zero1-2"])
def test_two_ranks_have_equal_bits_under_any_sharding(runs: Harness, name: str) -> None:
    """A sum of two has only one order. zero2 and zero3 reduce each micro-batch, and so add four numbers differently."""
    assert runs.record(f"s-{name}")["weights_sha256"] == runs.record("s-ddp-2")["weights_sha256"]


def test_log_shows_every_rank_on_the_mesh(runs: Harness) -> None:
    places = [rank.of(StartEvent)[0].place for rank in runs.events("s-tp-pp-4").ranks.values()]
    assert [(place["pp"], place["tp"]) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    log = runs.folder("s-tp-pp-4").rank_log(0).read_text()
    assert "rank  pp  tp  pp group  tp group" in log


@pytest.mark.parametrize("name", RUNS)
def test_traffic_of_a_step_matches_the_formula(runs: Harness, name: str) -> None:
    config = from_dict(runs.folder(f"s-{name}").read_run_json().config)
    world_size, _ = RUNS[name]
    for rank in range(world_size):
        for step in (2, 7):
            assert traffic_problems(config, world_size, runs.events(f"s-{name}").ranks[rank], step) == []


@pytest.mark.parametrize("name", RUNS)
def test_memory_is_reported(runs: Harness, name: str) -> None:
    for rank in runs.events(f"s-{name}").ranks.values():
        (memory,) = rank.of(MemoryEvent)
        assert all(getattr(memory, part) > 0 for part in ("parameters", "gradients", "optimizer", "activations"))


def test_run_resumes_under_another_strategy(runs: Harness) -> None:
    """dp 4, then tp 2 x pp 2, then zero3 on 2: the losses equal those of a run without changes."""
    for world_size, steps, settings in (
        (4, 5, ("strategy.tp=2", "strategy.pp=2")),
        (2, 8, ("strategy.tp=1", "strategy.pp=1", "strategy.name=zero3")),
    ):
        words = [word for text in (f"train.steps={steps}", *settings) for word in ("--set", text)]
        runs.run("frog", "run", "--nproc", str(world_size), "--", "train", "--resume", "runs/moved", *words)
    moved, calm = (runs.events(name).main.by_step(StepEvent) for name in ("moved", "stayed"))
    assert runs.record("moved")["order_sha256"] == runs.record("stayed")["order_sha256"]
    for step, event in calm.items():
        assert moved[step].loss_mean == pytest.approx(event.loss_mean, rel=1e-4)
    segments = runs.folder("moved").read_run_json().segments
    assert [segment.mesh["pp"] for segment in segments] == [1, 2, 1]


@pytest.mark.timeout(1800)
def test_checkpoint_of_any_strategy_loads_under_any_other(harness: Harness, tmp_path: Path) -> None:
    """Worlds of 4 and 2 read each other's checkpoints: weights, both moments and the step count, bit for bit."""
    folder = tmp_path / "runs"
    folder.mkdir()
    results: dict[str, list[str]] = {}
    for number, world_size in enumerate((2, 4, 2)):
        out = tmp_path / f"{number}.json"
        command = (
            "frog",
            "run",
            "--nproc",
            str(world_size),
            "--threads",
            "1",
            "--",
            str(RESHARD),
            str(folder),
            str(out),
        )
        harness.run(*command, limit_s=840)
        results |= json.loads(out.read_text())
    assert len(results) > 100
    assert {pair: names for pair, names in results.items() if names} == {}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("strategy.tp=3",), ("tp 3", "world of 2")),
        (("strategy.tp=2", "model.num_key_value_heads=1"), ("num_key_value_heads=1", "strategy.tp=2")),
        (("strategy.pp=2", "model.num_hidden_layers=1"), ("num_hidden_layers=1", "2 stages")),
        (("strategy.pp=2",), ("train.grad_accum=1", "strategy.pp=2")),
        (("strategy.name=zorro",), ("strategy.name='zorro'", "'zero1'")),
        (("strategy.cp=2", "data.sequence_length=15"), ("data.sequence_length=15", "4")),
        (("strategy.shard=2",), ("strategy.shard=2", "ddp")),
        (("strategy.name=zero3", "train.compile=true"), ("train.compile=true", "zero3")),
    ],
)
def test_impossible_setting_is_explained(harness: Harness, settings: tuple[str, ...], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(harness.root / "run.toml", settings).check_world(2)
    assert all(word in str(caught.value) for word in words), caught.value


def test_impossible_setting_is_reported_once(harness: Harness) -> None:
    done = harness.train(2, "never", "strategy.tp=3", code=2)
    assert "tp 3" in done.stderr
    assert "world of 2" in done.stderr
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert not harness.folder("never").path.exists()


def test_strategy_names_are_those_of_the_command() -> None:
    assert {"ddp-overlapped", "zero3", "tp+sp", "pp-zero-bubble", "cp", "ep", "dp x tp x pp"} <= set(proofs())

"""Sizes too large for the machine are rejected with a message, before any allocation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NoReturn

import pytest
from harness import RUN_FILE, Harness, set_words
from in_process import train

from frog.core import machine
from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig, load_run_config
from frog.core.errors import ConfigError
from frog.core.files import write_json
from frog.measure.chaos.sandbox import TINY_MODEL
from frog.plan.memory import rank_memory
from frog.train import main
from frog.train import train_commands as commands
from frog.train.model import TinyTransformer
from frog.train.model.hf import save_hf
from frog.train.trained import load_trained

WIDE = "model.hidden_size=1000000", "model.vocab_size=100000000"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "config.json", TINY_MODEL)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    return Harness(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        WIDE,
        ("model.max_position_embeddings=100000000", "model.hidden_size=4096"),
        ("train.global_batch_size=10000000", "data.sequence_length=100000", "model.max_position_embeddings=100000"),
        ("model.num_hidden_layers=10000", "model.hidden_size=4096", "model.intermediate_size=16384"),
    ],
)
def test_run_larger_than_the_machines_memory_is_rejected(
    here: Harness, settings: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    assert train(here, "run.toml", *set_words("train.device=cpu", *settings)) == 2
    said = capfd.readouterr().err
    assert "a rank takes at least" in said
    assert "Traceback" not in said
    assert not (here.root / "runs").exists()


@pytest.mark.parametrize(("ranks", "refused"), [("1", False), ("4", True)])
def test_ranks_of_a_node_share_its_memory(
    here: Harness, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ranks: str, refused: bool
) -> None:
    """Memory that suffices for one of four ranks does not suffice for four ranks on one node."""
    least = load_run_config(here.root / "run.toml").least_bytes(4)
    monkeypatch.setattr(machine, "machine_bytes", lambda: 3 * least)
    world = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": ranks, "RANK": "0", "MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    joined: list[bool] = []

    def joined_world(*_: object) -> NoReturn:
        joined.append(True)
        raise ConfigError("the rank would now join its world")

    monkeypatch.setattr(main, "joined_world", joined_world)
    assert train(here, "run.toml", *set_words("train.device=cpu")) == 2
    assert joined == ([] if refused else [True])
    assert ("a node of 4 ranks takes at least" in capfd.readouterr().err) == refused


def test_import_and_load_check_memory(here: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights, and a config.json or run.json that asks for tables of a hundred million positions."""
    save_hf(TinyTransformer(ModelConfig(**TINY_MODEL)), here.root / "hf", None)
    arguments = argparse.Namespace(folder="hf", name="base")
    assert commands.import_model(arguments) == 0
    monkeypatch.setattr(machine, "machine_bytes", lambda: 1 << 30)
    for path in (here.root / "hf" / "config.json", here.root / "runs" / "base" / "run.json"):
        table = json.loads(path.read_text())
        (table if path.name == "config.json" else table["config"]["model"])["max_position_embeddings"] = 10**8
        path.write_text(json.dumps(table))
    with pytest.raises(ConfigError, match=r"hf/config\.json: the model takes at least"):
        commands.import_model(argparse.Namespace(folder="hf", name="other"))
    with pytest.raises(ConfigError, match=r"base/run\.json: the model takes at least"):
        load_trained(here.folder("base"))


@pytest.mark.parametrize(
    "strategy",
    [
        StrategyConfig(),
        StrategyConfig(name="zero3"),
        StrategyConfig(name="ddp", tp=2),
        StrategyConfig(name="ddp", pp=2),
    ],
)
def test_minimum_memory_is_not_above_measured_memory(strategy: StrategyConfig) -> None:
    """The lower bound is not above the measured need, so that no possible run is rejected."""
    train, data = TrainConfig(grad_accum=2), DataConfig(sequence_length=16)
    config = RunConfig(ModelConfig(**TINY_MODEL), data=data, train=train, strategy=strategy)
    assert config.problems() == config.world_problems(4) == []
    takes = max(rank_memory(config, 4, rank).total for rank in range(4))
    assert config.model.built_bytes() < config.least_bytes(4) <= config.model.built_bytes() + takes


def test_container_memory_limit_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    whole = machine.machine_bytes()
    for said, expected in (("max", whole), ("1048576", 1 << 20), (str(1 << 62), whole)):
        (tmp_path / "memory.max").write_text(said)
        assert machine.machine_bytes() == expected

"""Run files, model files and tables of run.json with every key wrong: each is read, or rejected by file name."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mutations import held_to_its_schema, table_held_to_its_schema

from frog.core.config import from_dict, load_model_config, load_run_config, to_dict
from frog.core.config.deepspeed import fill_deepspeed, read_deepspeed
from frog.core.config.finetune import FinetuneConfig, finetune_from_dict
from frog.core.errors import ConfigError

CONFIG = Path(__file__).parents[3] / "config"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    for path in (*CONFIG.glob("*.json"), *CONFIG.glob("*.toml")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / "demo.toml"


def test_run_file_with_wrong_values_is_rejected_with_its_name(run_file: Path) -> None:
    held_to_its_schema(run_file, lambda: load_run_config(run_file))


def test_model_file_with_wrong_values_is_rejected_with_its_name(run_file: Path) -> None:
    path = run_file.with_name("config.json")
    held_to_its_schema(path, lambda: load_model_config(path))
    held_to_its_schema(path, lambda: load_run_config(run_file), names="demo.toml")


def test_overrides_of_every_type_are_checked(run_file: Path) -> None:
    def read(value: Any) -> None:
        load_run_config(run_file, [f"train.steps={json.dumps(value)}"])

    table_held_to_its_schema(1, read, "train.steps")


def test_stored_configs_with_wrong_values_are_rejected(run_file: Path) -> None:
    good = json.loads(json.dumps(to_dict(load_run_config(run_file))))
    table_held_to_its_schema(good, lambda table: from_dict(table, Path("here/run.json")), "here/run.json")


def test_stored_finetune_configs_with_wrong_values_are_rejected() -> None:
    tuned = FinetuneConfig("runs/one", 4, "0" * 64, "guard", "1" * 64, "classification", ("a", "b"), 3, 0.25)
    good = json.loads(json.dumps(asdict(tuned)))
    assert finetune_from_dict(good) == tuned
    table_held_to_its_schema(good, lambda table: finetune_from_dict(table, Path("here/run.json")), "here/run.json")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.steps=nan", "must be a whole number"),
        ("optimizer.learning_rate=nan", "must be a number, finite"),
        ("optimizer.learning_rate=inf", "must be a number, finite"),
        ("train.steps=1_000_000_000_000", "at most 1000000000"),
        ("model.num_hidden_layers=1000000000", "must be at most 10000"),
        ("model.initializer_range=-1", "must be at least 0"),
        ("seed=99999999999999999999", "of 64 bits"),
        ("model.max_position_embeddings=1000000000", "must be at most 100000000"),
        ("train.global_batch_size=1000000000", "must be at most 10000000"),
        ("train.grad_accum=1000000", "must be at most 100000"),
        ("data.sequence_length=1000000000", "must be at most 100000000"),
        ("train.timeout_s=1e18", "must be at most 1000000000"),
        ("strategy.bucket_mb=1e300", "must be at most 1000000000"),
    ],
)
def test_numbers_outside_limits_are_rejected(run_file: Path, setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_run_config(run_file, [setting])


@pytest.mark.parametrize("name", ["deepspeed_zero1.json", "deepspeed_zero3.json"])
def test_deepspeed_files_with_wrong_values_are_rejected(run_file: Path, name: str) -> None:
    path = run_file.with_name(name)
    config = load_run_config(run_file, [f"strategy.name={name[10:15]}", "strategy.implementation=deepspeed"])
    optimizer = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    held_to_its_schema(path, lambda: fill_deepspeed(read_deepspeed(path), path, config, 2, optimizer))

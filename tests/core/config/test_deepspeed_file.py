"""DeepSpeed's files: those that come with Frog, the values that the run fills in, and contradictions."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from frog.core.config import OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.deepspeed import deepspeed_path, fill_deepspeed, read_deepspeed
from frog.core.config.strategies import DATA_STRATEGIES
from frog.core.env import world_env
from frog.core.errors import ConfigError, UsageError
from frog.train.comm import World
from frog.train.parallel.torch_impl.deepspeed import DeepSpeed, import_deepspeed
from frog.train.prove.matrix import SMALL_MODEL

CONFIG = Path(__file__).parents[3] / "config"
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
RUN = RunConfig(
    SMALL_MODEL,
    train=TrainConfig(global_batch_size=32, grad_accum=4),
    strategy=StrategyConfig("zero2", "deepspeed"),
)


def fill(table: dict[str, Any], run: RunConfig = RUN) -> dict[str, Any]:
    return fill_deepspeed(table, Path("ds.json"), run, 2, ADAMW)


@pytest.mark.parametrize("name", [name for name, entry in DATA_STRATEGIES.items() if "deepspeed" in entry.modules])
def test_shipped_deepspeed_files_use_auto_for_run_settings(name: str) -> None:
    run = replace(RUN, strategy=replace(RUN.strategy, name=name))
    filled = fill(read_deepspeed(CONFIG / f"deepspeed_{name}.json"), run)
    assert filled["zero_optimization"]["stage"] == int(name[-1])
    assert (filled["train_batch_size"], filled["gradient_accumulation_steps"]) == (32, 4)
    assert filled["train_micro_batch_size_per_gpu"] == 4
    assert filled["gradient_clipping"] == 1.0
    assert filled["bf16"] == {"enabled": False}
    assert filled["optimizer"]["params"] == {**ADAMW, "betas": [0.9, 0.95], "torch_adam": True}
    assert '"auto"' not in json.dumps(filled)


def test_missing_deepspeed_keys_are_filled_in() -> None:
    filled = fill({"zero_optimization": {"overlap_comm": False}})
    assert filled["zero_optimization"] == {"overlap_comm": False, "stage": 2}
    assert filled["train_batch_size"] == 32
    assert "optimizer" not in filled


def test_run_file_sets_deepspeed_precision_and_clipping() -> None:
    run = replace(RUN, train=replace(RUN.train, precision="bf16"), optimizer=OptimizerConfig(grad_clip="off"))
    filled = fill({"bf16": {"enabled": True}}, run)
    assert filled["bf16"] == {"enabled": True}
    assert filled["gradient_clipping"] == 0.0


def test_consistent_deepspeed_file_is_used_unchanged() -> None:
    table = {"train_batch_size": 32, "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "betas": [0.9, 0.95]}}}
    assert fill(table)["optimizer"]["params"]["eps"] == 1e-8


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"train_batch_size": 64}, "train_batch_size=64, the run has 32"),
        ({"gradient_clipping": 0.5}, "gradient_clipping=0.5, the run has 1.0"),
        ({"bf16": {"enabled": True}}, "bf16.enabled=true, the run has false"),
        ({"zero_optimization": {"stage": 3}}, "zero_optimization.stage=3, the run has 2"),
        ({"optimizer": {"type": "Adam"}}, 'optimizer.type="Adam", the run has "AdamW"'),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 0.1}}}, "optimizer.params.lr=0.1, the run has 0.003"),
        ({"scheduler": {"type": "WarmupLR"}}, "scheduler: not supported by Frog"),
        ({"fp16": {"enabled": True}}, "fp16.enabled=true, the run has false"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "zero_optimization.offload_optimizer: not"),
        (
            {"zero_optimization": {"reduce_bucket_size": "auto"}},
            'zero_optimization.reduce_bucket_size="auto": Frog has',
        ),
        ({"zero_optimization": 2}, "zero_optimization=2: must be an object"),
    ],
)
def test_deepspeed_contradiction_reports_both_values(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=r"ds\.json contradicts the run") as caught:
        fill(table)
    assert said in str(caught.value)


def test_all_deepspeed_contradictions_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        fill({"train_batch_size": 64, "gradient_clipping": 0.5})
    assert str(caught.value).count("the run has") == 2


@pytest.mark.parametrize(
    "section",
    [{"scheduler": None}, {"fp16": {"enabled": False}}, {"zero_optimization": {"offload_param": {"device": "none"}}}],
)
def test_disabled_deepspeed_sections_are_accepted(section: dict[str, Any]) -> None:
    fill(section)


def test_unreadable_deepspeed_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such DeepSpeed file"):
        read_deepspeed(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        read_deepspeed(tmp_path / "bad.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="found a list, expected object"):
        read_deepspeed(tmp_path / "list.json")
    monkeypatch.chdir(tmp_path)
    assert deepspeed_path(RUN) == CONFIG / "deepspeed_zero2.json"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "deepspeed_zero2.json").write_text("{}")
    assert deepspeed_path(RUN) == Path("config/deepspeed_zero2.json")
    named = replace(RUN, strategy=replace(RUN.strategy, deepspeed_file="own.json"))
    assert deepspeed_path(named) == Path("own.json")


def test_missing_deepspeed_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    world = World(world_env(), torch.device("cpu"), timeout_s=1)
    with pytest.raises(UsageError, match="DeepSpeed cannot be imported") as caught:
        import_deepspeed(world)
    assert "pip install 'frog[deepspeed]'" in str(caught.value)


def test_deepspeed_rejects_fp16_before_start() -> None:
    run = replace(RUN, train=replace(RUN.train, precision="fp16"))
    with pytest.raises(ConfigError, match=r"train\.precision='fp16' with strategy\.implementation='deepspeed'"):
        DeepSpeed(run, None, None, None)  # type: ignore[arg-type]

"""The strategies that torch and DeepSpeed implement here, and the errors for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frog.core.config import ModelConfig, StrategyConfig
from frog.core.config.strategy import strategy_problems

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=32,
)


def problems(grad_accum: int = 4, model: ModelConfig = MODEL, **strategy: Any) -> list[str]:
    return strategy_problems(StrategyConfig(**strategy), model, 16, grad_accum, 4)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ({"implementation": "torch", "cp": 2}, "strategy.cp=2 with strategy.implementation='torch'"),
        ({"implementation": "torch", "name": "zero1", "tp": 2}, "strategy.name='zero1' with strategy.tp=2"),
        ({"implementation": "torch", "name": "zero1", "pp": 2}, "strategy.name='zero1' with strategy.pp=2"),
        ({"implementation": "torch", "compression": "fp16", "tp": 2}, "strategy.compression='fp16' with strategy.tp=2"),
        ({"implementation": "torch", "compression": "fp16", "name": "zero3"}, "strategy.compression='fp16'"),
        (
            {"implementation": "torch", "compression": "int8"},
            "strategy.compression='int8': a setting of Frog's own ddp and diloco",
        ),
        (
            {"name": "zero1", "compression": "int8"},
            "strategy.compression='int8': a setting of Frog's own ddp and diloco",
        ),
        ({"compression": "int8", "reduction": "overlapped"}, "with strategy.reduction='overlapped'"),
        ({"compression": "int8", "pp": 2}, "strategy.compression='int8' with strategy.pp=2"),
        ({"implementation": "deepspeed"}, "strategy.name='ddp' with strategy.implementation='deepspeed'"),
        ({"implementation": "deepspeed", "name": "zero1", "tp": 2}, "strategy.tp=2 with"),
        ({"implementation": "deepspeed", "name": "zero3", "shard": 2}, "strategy.shard=2 with"),
    ],
)
def test_unsupported_combination_is_reported_with_both_fields(strategy: dict[str, Any], said: str) -> None:
    (problem,) = problems(**strategy)
    assert said in problem


def test_torch_zero_bubble_requires_complete_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.core.config.strategy.version", lambda package: "2.13.0")
    strategy = {"implementation": "torch", "pp": 2, "schedule": "zero_bubble"}
    assert problems(4, **strategy) == []
    (problem,) = problems(5, **strategy)
    assert "train.grad_accum=5 is not a multiple of the 2 rounds" in problem
    assert problems(5, **{**strategy, "implementation": "frog"}) == []


@pytest.mark.parametrize("axis", ["tp", "pp"])
def test_ddp_by_torch_2_9_over_tensor_or_pipeline_parallelism_is_refused(
    axis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(world_size: int, **changes: Any) -> list[str]:
        strategy = StrategyConfig(**{"implementation": "torch", axis: 2, **changes})
        return strategy_problems(strategy, MODEL, 16, 4, world_size)

    monkeypatch.setattr("frog.core.config.strategy.version", lambda package: "2.9.1")
    (problem,) = found(4)
    assert f"with strategy.{axis}=2, 2 data ranks" in problem
    assert "`replicate` of torch 2.9.1 does not take the mesh of the data ranks; use torch 2.11 or later" in problem
    assert found(2) == found(4, implementation="frog") == []
    monkeypatch.setattr("frog.core.config.strategy.version", lambda package: "2.11.0")
    assert found(4) == []


@pytest.mark.parametrize("old", ["2.9.1", "2.10.0a0+b4e4ee8", "2.12.0+cpu"])
def test_torch_zero_bubble_is_rejected_before_2_13(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frog.core.config.strategy.version", lambda package: old)
    strategy = {"implementation": "torch", "pp": 4, "schedule": "zero_bubble"}
    (problem,) = problems(4, **strategy)
    assert f"torch {old} cannot split the backward pass of Frog's model in two; use torch 2.13 or later" in problem
    assert problems(4, **{**strategy, "implementation": "frog"}) == []
    assert problems(4, **{**strategy, "schedule": "1f1b"}) == []


def test_torch_pipeline_rejects_mixture_of_experts() -> None:
    mixture = replace(MODEL, num_local_experts=4)
    (problem,) = problems(model=mixture, implementation="torch", pp=2)
    assert "strategy.pp=2 with num_local_experts=4" in problem


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "zero1"},
        {"name": "zero3", "tp": 2},
        {"name": "zero2", "shard": 2},
        {"pp": 2, "tp": 2},
        {"compression": "powersgd"},
    ],
)
def test_torch_strategies_are_accepted(strategy: dict[str, Any]) -> None:
    assert problems(implementation="torch", **strategy) == []

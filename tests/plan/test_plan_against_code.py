"""The formulas compared with the strategies' own code: every collective and every byte of one rank's step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated_world import take_step

from frog.core.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, StrategyConfig, TrainConfig
from frog.core.config.strategies import DATA_STRATEGIES
from frog.plan.measure import compare_step, problems
from frog.plan.memory import PARTS, rank_memory

MODEL = ModelConfig(512, 64, 176, 5, 4, 2, 64)

CASES: dict[str, tuple[int, dict[str, Any]]] = {
    **{name: (4, {"name": name}) for name in DATA_STRATEGIES},
    "ddp, naive": (4, {"reduction": "naive"}),
    "ddp, in buckets": (4, {"bucket_mb": 0.1}),
    "ddp, overlapped": (4, {"bucket_mb": 0.1, "reduction": "overlapped"}),
    "zero1, hybrid": (4, {"name": "zero1", "shard": 2}),
    "zero3, hybrid": (4, {"name": "zero3", "shard": 2}),
    "ddp, in 8 bits": (4, {"compression": "int8"}),
    "diloco, in 8 bits": (4, {"name": "diloco", "compression": "int8"}),
    "tp": (2, {"tp": 2}),
    "tp, whole stream": (2, {"tp": 2, "sequence_parallel": False}),
    "ddp x tp": (4, {"tp": 2}),
    "zero1 x tp": (4, {"name": "zero1", "tp": 2}),
    "zero3 x tp": (4, {"name": "zero3", "tp": 2}),
    "cp": (4, {"cp": 4}),
    "ddp x cp x tp": (8, {"cp": 2, "tp": 2}),
    "zero1 x cp": (4, {"name": "zero1", "cp": 2}),
    "pp, gpipe": (2, {"pp": 2, "schedule": "gpipe"}),
    "pp, 1f1b": (3, {"pp": 3}),
    "pp, zero bubble": (2, {"pp": 2, "schedule": "zero_bubble"}),
    "pp, interleaved": (2, {"pp": 2, "schedule": "interleaved"}),
    "ddp x pp x tp": (8, {"pp": 2, "tp": 2}),
    "zero1 x pp": (4, {"name": "zero1", "pp": 2}),
    "cp x pp": (4, {"pp": 2, "cp": 2}),
}


def config(checkpointing: bool, model: ModelConfig, **strategy: Any) -> RunConfig:
    train = TrainConfig(global_batch_size=16, grad_accum=4, activation_checkpointing=checkpointing)
    return RunConfig(model=model, data=DataConfig(sequence_length=32), train=train, strategy=StrategyConfig(**strategy))


RECOMPUTED = ("ddp", "zero3", "tp", "tp, whole stream", "cp", "pp, 1f1b")


@pytest.mark.parametrize(
    ("case", "checkpointing"),
    [
        *(
            pytest.param(case, False, marks=[pytest.mark.slow] if number % 4 else [])
            for number, case in enumerate(CASES)
        ),
        *(pytest.param(case, True, marks=pytest.mark.slow) for case in RECOMPUTED),
    ],
)
def test_step_traffic_and_memory_match_formulas(case: str, checkpointing: bool) -> None:
    world, strategy = CASES[case]
    hold_against_formulas(config(checkpointing, MODEL, **strategy), world)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("case", ["ddp", "zero1"])
def test_sgd_optimizer_state_matches_formulas(case: str, momentum: float) -> None:
    world, strategy = CASES[case]
    run = replace(config(False, MODEL, **strategy), optimizer=OptimizerConfig("sgd", momentum=momentum))
    _, held = take_step(run, world, 0)
    assert held["optimizer"] == rank_memory(run, world, 0).optimizer
    assert (held["optimizer"] > 0) == (momentum > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in DATA_STRATEGIES.items() if not entry.trains_locally])
def test_expert_parallelism_matches_formulas(name: str) -> None:
    hold_against_formulas(config(False, replace(MODEL, num_local_experts=4), name=name, ep=2), 4)


def hold_against_formulas(run: RunConfig, world: int) -> None:
    for rank in (0, world - 1):
        recorded, held = take_step(run, world, rank)
        found = compare_step(run, world, rank, recorded)
        assert problems(found, world) == []
        for one in found:
            if one.expected and one.op != "all_reduce":  # all-reduces also carry numbers that ranks agree on
                assert one.num_messages == one.expected.num_messages, one
        memory = rank_memory(run, world, rank)
        assert {part: held[part] / getattr(memory, part) for part in PARTS} == pytest.approx(
            dict.fromkeys(PARTS, 1.0), rel=0.01
        )


@pytest.mark.parametrize("case", ["zero1", "tp", "tp, whole stream", "pp, zero bubble"])
@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_qk_norm_matches_formulas(case: str, checkpointing: bool) -> None:
    world, strategy = CASES[case]
    hold_against_formulas(config(checkpointing, replace(MODEL, qk_norm=True), **strategy), world)


@pytest.mark.parametrize(
    "model",
    [
        replace(MODEL, qk_norm=True),
        replace(MODEL, num_key_value_heads=4),
        replace(MODEL, num_key_value_heads=1, tie_word_embeddings=False),
        replace(MODEL, num_local_experts=4),
    ],
    ids=["QK norm", "every head its own keys", "one key head, untied", "experts"],
)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_memory_of_one_process_matches_formulas(model: ModelConfig, checkpointing: bool) -> None:
    run = config(checkpointing, model)
    _, held = take_step(run, 1, 0)
    memory = rank_memory(run, 1)
    for part in PARTS:
        assert held[part] == pytest.approx(getattr(memory, part), rel=0.01), part


def test_diloco_expects_no_traffic_within_a_round() -> None:
    run = config(False, MODEL, name="diloco", inner_steps=4)
    recorded, _ = take_step(run, 2, 1)
    assert problems(compare_step(run, 2, 1, recorded, step=4), 2) == []
    assert problems(compare_step(run, 2, 1, [], step=5), 2) == []
    assert problems(compare_step(run, 2, 1, [], step=4), 2)
    assert problems(compare_step(run, 2, 1, recorded, step=5), 2)


def test_missing_collective_is_reported() -> None:
    run = config(False, MODEL, name="zero3")
    recorded, _ = take_step(run, 4, 1)
    found = problems(compare_step(run, 4, 1, [one for one in recorded if one.op != "reduce_scatter"]), 4)
    assert len(found) == 1
    assert found[0].startswith("reduce_scatter over dp: 0 bytes in 0 messages")
    twice = problems(compare_step(run, 4, 1, [*recorded, *recorded]), 4)
    assert {text.split(":")[0] for text in twice} == {"all_gather over dp", "reduce_scatter over dp"}

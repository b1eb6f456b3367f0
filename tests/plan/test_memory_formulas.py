"""The memory of a rank, compared with hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.plan.layout import RankShare
from frog.plan.memory import activation_bytes, rank_memory, recomputed_bytes

MODEL = ModelConfig(20, 8, 16, 3, 4, 2, 16)
P, LAYER, ROOT = 4 * 1944, 4 * 592, 4 * 168

N = 2 * 8
ONE_LAYER = 8 * N * 8 + 2 * N * 4 + 4 * N + 2 * N + 4 * N * 16
"""Two sequences of 8 tokens: 8 N D, k and v, N H, 2 N, 4 N F."""

HEAD = 2 * N * 8 + N + (N + 20) * 8


def run(*, accum: int = 1, batch: int = 8, checkpointing: bool = False, **strategy: Any) -> RunConfig:
    train = TrainConfig(global_batch_size=batch, grad_accum=accum, activation_checkpointing=checkpointing)
    return RunConfig(model=MODEL, data=DataConfig(sequence_length=8), train=train, strategy=StrategyConfig(**strategy))


@pytest.mark.parametrize(
    ("name", "parameters", "gradients", "optimizer", "passing"),
    [
        ("ddp", P, P, 2 * P, 0),
        ("zero1", P, P, P / 2, 0),
        ("zero2", P, P / 4, P / 2, ROOT + 2 * LAYER),
        ("zero3", P / 4, P / 4, P / 2, 2 * (ROOT + 2 * LAYER)),
    ],
)
def test_zero_shards_parameters_gradients_and_optimizer_by_stage(
    name: str, parameters: float, gradients: float, optimizer: float, passing: float
) -> None:
    memory = rank_memory(run(name=name), 4)
    assert (memory.parameters, memory.gradients, memory.optimizer) == (parameters, gradients, optimizer)
    assert memory.passing == passing
    assert memory.total == parameters + gradients + optimizer + passing + memory.activations


def test_single_rank_shards_nothing() -> None:
    memories = [rank_memory(run(name=name), 1) for name in ("ddp", "zero1", "zero2", "zero3")]
    assert memories == [memories[0]] * 4


def test_hybrid_sharding_shards_over_fewer_ranks() -> None:
    assert rank_memory(run(name="zero3", shard=2), 4).parameters == P / 2


def test_activations_match_hand_computed_values() -> None:
    assert activation_bytes(RankShare(run(), 4)) == 4 * (3 * ONE_LAYER + HEAD)
    checkpointed = RankShare(run(checkpointing=True), 4)
    assert activation_bytes(checkpointed) == 4 * (3 * N * 8 + HEAD)
    assert recomputed_bytes(checkpointed) == 4 * (ONE_LAYER - N * 8) == rank_memory(run(checkpointing=True), 4).passing
    assert recomputed_bytes(RankShare(run(), 4)) == 0


@pytest.mark.parametrize(
    ("schedule", "held"),
    [("gpipe", (4, 4)), ("1f1b", (2, 1)), ("zero_bubble", (2, 1))],
)
def test_schedule_determines_number_of_held_micro_batches(schedule: str, held: tuple[int, int]) -> None:
    """Two stages of two layers and one, four micro-batches of two sequences."""
    config = run(accum=4, pp=2, schedule=schedule)
    first, last = (activation_bytes(RankShare(config, 2, rank)) for rank in (0, 1))
    assert first == 4 * held[0] * 2 * ONE_LAYER
    assert last == 4 * held[1] * (ONE_LAYER + HEAD)


def test_deferred_weight_gradients_take_memory() -> None:
    """The last stage of two defers its weight gradients by one micro-batch; the first defers none."""
    config = run(accum=4, pp=2, schedule="zero_bubble")
    first, last = (rank_memory(config, 2, rank) for rank in (0, 1))
    assert first.passing == 0
    assert last.passing == 4 * (ONE_LAYER - 3 * N * 8)


def test_interleaved_stages_hold_more_thin_micro_batches() -> None:
    config = replace(run(accum=4, pp=2, schedule="interleaved"), model=replace(MODEL, num_hidden_layers=4))
    # Rank 0 warms up with four forward passes, two of each of its stages, and then runs one more.
    assert activation_bytes(RankShare(config, 2, 0)) == 4 * 5 * ONE_LAYER


def test_tensor_and_context_parallelism_split_activations() -> None:
    whole, by_tp = (RankShare(run(batch=2, **axes), world) for axes, world in (({}, 1), ({"tp": 2}, 2)))
    split = run(batch=2, tp=2, sequence_parallel=False)
    assert activation_bytes(by_tp) < activation_bytes(RankShare(split, 2)) < activation_bytes(whole)
    # A ring keeps the attention's output twice, and rotary tables of its positions (2 T C); the rest is half as long,
    # except the head's gradient of the weight.
    by_cp = activation_bytes(RankShare(run(batch=2, cp=2), 2))
    assert by_cp == (activation_bytes(whole) + 4 * (3 * N * 8 + 20 * 8)) / 2 + 4 * 2 * 4 * 2

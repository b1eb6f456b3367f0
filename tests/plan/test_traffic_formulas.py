"""The traffic of each strategy, compared with hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frog.core.config import DataConfig, ModelConfig, RunConfig, StrategyConfig, TrainConfig
from frog.plan.layout import RankShare, UnitSizes, layer_unit
from frog.plan.links import wire_bytes
from frog.plan.traffic import Flow, merge, num_buckets, partition_vectors, step_traffic

MODEL = ModelConfig(20, 8, 16, 3, 4, 2, 16)
"""A layer: q and o 64 each, k and v 32 each, three of 128; norms 8 each: 592. Embedding 160, last norm 8."""

LAYER, P = 4 * 592, 4 * (3 * 592 + 160 + 8)
X = 4 * 2 * 8 * 8
"""Two sequences of 8 tokens, 8 wide."""


def run(*, accum: int = 2, checkpointing: bool = False, model: ModelConfig = MODEL, **strategy: Any) -> RunConfig:
    """A step of 8 sequences of 8 tokens."""
    train = TrainConfig(global_batch_size=8, grad_accum=accum, activation_checkpointing=checkpointing)
    return RunConfig(model=model, data=DataConfig(sequence_length=8), train=train, strategy=StrategyConfig(**strategy))


def flows(config: RunConfig, world: int = 4, rank: int = 0) -> dict[tuple[str, str], tuple[float, int]]:
    """Payload and messages by axis and operation."""
    assert config.world_problems(world) == []
    return {(f.axis, f.op): (f.payload_bytes, f.num_messages) for f in step_traffic(config, world, rank)}


def test_parameter_counts_match_model() -> None:
    for model in (MODEL, replace(MODEL, tie_word_embeddings=False), replace(MODEL, num_local_experts=4)):
        assert RankShare(run(model=model), 1).parameter_bytes == 4 * model.num_parameters()
    assert layer_unit(MODEL).numel == 592


@pytest.mark.parametrize(
    ("op", "share"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("send", 1),
        ("recv", 0),
    ],
)
def test_wire_bytes_match_ring_algorithms(op: str, share: float) -> None:
    assert wire_bytes(op, 1000, 4) == 1000 * share
    assert wire_bytes(op, 1000, 1) == 0


def test_ddp_sends_gradient_once_for_any_number_of_micro_batches() -> None:
    assert flows(run(accum=1)) == flows(run(accum=2)) == {("dp", "all_reduce"): (P, 1)}
    (flow,) = step_traffic(run(), 4)
    assert flow.wire_bytes == 11664 == 2 * 3 / 4 * P
    assert flows(run(reduction="naive"))["dp", "all_reduce"] == (P, 3 * 9 + 2)


def test_buckets_fill_from_the_last_matrix_to_the_first() -> None:
    unit = UnitSizes((100, 30, 30, 50), (8,))
    assert num_buckets(unit, 4 * 1000) == 1
    assert num_buckets(unit, 4 * 60) == 3, "50 + 30, then 30 + 100, then the vectors"
    assert num_buckets(unit, 4 * 1) == 5


def test_zero1_sends_as_much_as_ddp_in_two_collectives() -> None:
    assert flows(run(name="zero1")) == {("dp", "reduce_scatter"): (P, 1), ("dp", "all_gather"): (P, 1)}
    halves = step_traffic(run(name="zero1"), 4)
    assert sum(flow.wire_bytes for flow in halves) == sum(flow.wire_bytes for flow in step_traffic(run(), 4))


def test_zero2_reduces_every_micro_batch() -> None:
    assert flows(run(name="zero2")) == {("dp", "reduce_scatter"): (2 * P, 8), ("dp", "all_gather"): (P, 4)}


def test_zero3_gathers_twice_except_root_and_last_layer() -> None:
    assert flows(run(name="zero3")) == {
        ("dp", "all_gather"): (2 * (P + 2 * LAYER), 2 * 6),
        ("dp", "reduce_scatter"): (2 * P, 2 * 4),
    }


def test_hybrid_sharding_reduces_shard_over_replicas() -> None:
    assert flows(run(name="zero1", shard=2)) == {
        ("shard", "reduce_scatter"): (P, 1),
        ("shard", "all_gather"): (P, 1),
        ("replicate", "all_reduce"): (P / 2, 1),
    }


def test_tensor_parallelism_exchanges_the_stream_around_each_block() -> None:
    sent = flows(run(tp=2))
    # Six blocks, forward and backward; the embedding and the head once each way; two micro-batches.
    assert sent["tp", "all_gather"] == sent["tp", "reduce_scatter"] == (2 * 14 * X, 28)
    # The loss: three numbers for each of 16 tokens. The seven norms, once.
    assert sent["tp", "all_reduce"] == (2 * 3 * 16 * 4 + 7 * 8 * 4, 5)
    assert sent["dp", "all_reduce"] == (4 * (3 * (576 // 2 + 16) + 160 // 2 + 8), 1)


def test_tensor_parallelism_without_sequence_parallelism_uses_all_reduce() -> None:
    whole, halves = run(tp=2, sequence_parallel=False), run(tp=2)
    assert flows(whole)["tp", "all_reduce"] == (2 * 14 * X + 2 * 3 * 16 * 4, 2 * 16)
    norms = wire_bytes("all_reduce", 7 * 8 * 4, 2)
    sent = {name: sum(f.wire_bytes for f in step_traffic(c, 4)) for name, c in (("whole", whole), ("halves", halves))}
    assert sent["whole"] == sent["halves"] - norms


def test_checkpointing_repeats_forward_traffic_except_last_sum() -> None:
    sent = flows(run(tp=2, checkpointing=True))
    assert (sent["tp", "all_gather"][1], sent["tp", "reduce_scatter"][1]) == (2 * (14 + 6), 2 * (14 + 3))


def test_context_parallelism_sends_keys_and_values_around_the_ring() -> None:
    # k and v of 2 sequences of 4 tokens, 4 wide: 64 numbers. Twice, and their gradients, in 3 layers, 2 micro-batches.
    assert flows(run(cp=2)) == {("data", "all_reduce"): (P, 1), ("cp", "send_recv"): (2 * 3 * 3 * 64 * 4, 18)}
    # On four ranks the sequences are half as long, four to a micro-batch, and three shifts go around.
    assert flows(run(cp=4))["cp", "send_recv"] == (2 * 3 * 3 * 3 * 64 * 4, 54)


def test_pipeline_sends_residual_stream_between_stages() -> None:
    first, last = flows(run(pp=2), rank=0), flows(run(pp=2), rank=3)
    assert first["pp", "send"] == first["pp", "recv"] == last["pp", "send"] == (2 * X, 2)
    assert first["tied", "all_reduce"] == last["tied", "all_reduce"] == (4 * 160, 1)
    assert first["dp", "all_reduce"] == (4 * (2 * 592 + 160), 1)
    assert last["dp", "all_reduce"] == (4 * (592 + 160 + 8), 1)
    untied = replace(MODEL, tie_word_embeddings=False)
    assert ("tied", "all_reduce") not in flows(run(pp=2, model=untied))


def test_virtual_stages_send_more_and_middle_stages_both_ways() -> None:
    model = replace(MODEL, num_hidden_layers=8)
    interleaved = run(pp=2, schedule="interleaved", virtual_stages=4, model=model)
    assert flows(interleaved, rank=0)["pp", "send"] == (2 * 7 * X, 14)
    assert flows(run(pp=4, model=model, accum=4), rank=1)["pp", "send"] == (4 * 2 * X, 8)


def test_sequence_parallelism_splits_pipeline_messages() -> None:
    assert flows(run(pp=2, tp=2))["pp", "send"] == (2 * X, 2), "four sequences in a micro-batch, half of each"


def test_expert_parallelism_sends_tokens_and_averages_over_fewer_ranks() -> None:
    model = replace(MODEL, num_local_experts=4)
    sent = flows(run(ep=2, model=model))
    # 8 tokens per micro-batch go to two experts each, 8 wide, and back, forward and backward; and 4 counts.
    tokens, counts = 2 * 3 * 4 * (8 * 2 * 8 * 4), 2 * 3 * 4 * 8
    assert sent["ep", "all_to_all"] == (tokens + counts, 2 * 3 * 5)
    assert sent["expert_data", "all_reduce"][0] == 4 * 3 * (2 * 3 * 128)


def test_axis_of_one_rank_sends_nothing() -> None:
    for name in ("ddp", "zero1", "zero2", "zero3"):
        assert step_traffic(run(name=name), 1) == []


def test_flows_of_same_axis_and_operation_are_merged() -> None:
    merged = merge(
        [Flow("tp", "send", 2, 10, 1, "a"), Flow("tp", "send", 2, 5, 2, "b"), Flow("tp", "send", 2, 1, 1, "a")]
    )
    assert merged == [Flow("tp", "send", 2, 16, 4, "a, b")]


def test_vectors_of_all_partitions_sum_to_all_vectors() -> None:
    for name in ("zero1", "zero2", "zero3"):
        shares = [partition_vectors(RankShare(run(name=name), 4, rank)) for rank in range(4)]
        assert sum(map(sum, shares)) == 7 * 8

"""What programs do differently, and what it takes: losses, float8, experts, recomputation, launches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from frog.core.errors import ConfigError
from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.layer_time import Times
from frog.plan.estimate.programs import traits_of
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Precision, Recompute, Traits
from frog.plan.links import Group
from frog.plan.model import LatentAttention, PlannedModel

MIXTURE = PlannedModel(
    16, 4096, 32, 8, 128, 14336, 128256, experts=64, experts_per_token=8, expert_ffn=2048, gated=True
)


def test_far_experts_overlap_only_where_they_leave_the_nvlink_domain() -> None:
    cluster = clusters()["h100x8"]

    def expert_s(ep: int, **traits: bool) -> float:
        layout = Layout(seq_len=4096, global_batch=64, dp=32, ep=ep, traits=Traits(**traits))
        return StepModel(MIXTURE, layout, cluster).layers.layer(mixture=True).total.expert

    assert expert_s(16, overlaps_far_experts=True) == expert_s(16, overlaps_experts=True) < expert_s(16)
    assert expert_s(8, overlaps_far_experts=True) == expert_s(8) > expert_s(8, overlaps_experts=True)


def layer_s(experts: int, precision: Precision = "fp8", micro_batch: int = 1, **traits: bool) -> float:
    """Return the seconds of both passes of a layer with so many small experts on each of 8 ranks."""
    small = PlannedModel(
        24, 2048, 32, 4, 128, 6144, 151936, experts=8 * experts, experts_per_token=8, expert_ffn=768, gated=True
    )
    layout = Layout(4096, 64, micro_batch, dp=8, ep=8, precision=precision, traits=Traits("fused", **traits))
    return StepModel(small, layout, clusters()["b200x8"]).layers.layer(mixture=True).total.total


def test_a_layer_with_many_small_experts_takes_as_long_as_their_launches() -> None:
    """Of 16 experts in MXFP8: 2 products and casts forward, 4 products and 2 casts backward, each half a launch."""
    launch_s = StepModel(MIXTURE, Layout(4096, 8), clusters()["b200x8"]).constants.launch_s
    assert layer_s(16, "mxfp8", launches_each_expert=True) == pytest.approx((2 * 60 + 32 + 48) * launch_s)
    assert layer_s(16, launches_each_expert=True) == pytest.approx((2 * 60 + 64 + 80) * launch_s)
    assert layer_s(16, "bf16", launches_each_expert=True) == pytest.approx((2 * 60 + 16 + 32) * launch_s)
    assert layer_s(32, launches_each_expert=True) > 1.5 * layer_s(16, launches_each_expert=True)


def test_a_micro_batch_twice_as_large_takes_as_long_if_launches_bound_it() -> None:
    alone = layer_s(16, launches_each_expert=True)
    assert layer_s(16, launches_each_expert=True, micro_batch=2) == pytest.approx(alone)
    captured = layer_s(16, launches_each_expert=True, launches_ahead=True)
    assert captured == layer_s(16, launches_ahead=True) < 0.5 * alone


@pytest.mark.parametrize(
    ("row", "overlaps", "captured"),
    [
        ({"software": "Megatron-Bridge 26.06.01", "year": "2026", "precision": "mxfp8"}, True, True),
        ({"software": "Megatron-Bridge 26.06.01", "year": "2026", "precision": "bf16"}, False, False),
        ({"software": "Megatron-Bridge 25.11", "year": "2025", "precision": "mxfp8"}, False, False),
        ({"software": "Megatron-Bridge 25.09, CUDA graphs", "year": "2025", "precision": "fp8"}, False, True),
        ({"software": "Megatron-Core", "year": "2026", "precision": "mxfp8"}, False, False),
        (
            {"software": "Megatron-Bridge", "year": "2026", "precision": "mxfp8", "overlap_moe": "no"},
            False,
            True,
        ),
        (
            {"software": "Megatron-Bridge", "year": "2026", "precision": "mxfp8", "arch_notes": "token drop"},
            False,
            True,
        ),
    ],
    ids=["newest", "bf16", "2025", "graphs", "core", "stated", "drop"],
)
def test_recipes_for_mxfp8_of_2026_hide_experts_and_launches(
    row: dict[str, str], overlaps: bool, captured: bool
) -> None:
    traits = traits_of(row)
    assert (traits.overlaps_experts, traits.launches_ahead) == (overlaps, captured)
    assert traits.launches_each_expert


def test_a_token_travels_once_to_a_node_if_its_experts_are_in_groups() -> None:
    layout = Layout(seq_len=4096, global_batch=64, dp=32, ep=32, traits=Traits(sends_groups_once=True))

    def expert_s(model: PlannedModel) -> float:
        return StepModel(model, layout, clusters()["h100x8"]).layers.layer(mixture=True).total.expert

    assert expert_s(replace(MIXTURE, expert_groups=4)) < 0.7 * expert_s(MIXTURE)


def test_loss_takes_the_traffic_of_its_program() -> None:
    model, cluster = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256), clusters()["h100x8"]

    def head(loss_bytes: tuple[int, int]) -> tuple[float, float]:
        step = StepModel(model, Layout(4096, 8, tp=2, traits=Traits(loss_bytes=loss_bytes)), cluster)
        return step.head.forward.memory * step.kernels.memory_rate, step.head.backward.memory * step.kernels.memory_rate

    less, more = head((2, 4)), head((38, 14))
    assert more[0] - less[0] == pytest.approx(36 * 4096 * 128256 / 2)
    assert more[1] - less[1] == pytest.approx(10 * 4096 * 128256 / 2)


def test_float8_with_one_scale_per_tensor_is_gathered_in_one_byte() -> None:
    model, cluster = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256), clusters()["h100x8"]

    def tensor_s(precision: Precision, *, parallel: bool) -> float:
        layout = Layout(65536, 8, tp=8, sequence_parallel=parallel, precision=precision)
        return StepModel(model, layout, cluster).layers.layer(mixture=False).forward.tensor

    usual = tensor_s("bf16", parallel=True)
    assert tensor_s("fp8", parallel=True) == pytest.approx(0.75 * usual, rel=0.1)
    assert tensor_s("fp8_rowwise", parallel=True) == tensor_s("fp8", parallel=False) == usual

    def gather_s(precision: Precision) -> float:
        layout = Layout(8192, 64, dp=64, zero=3, precision=precision)
        step = StepModel(model, layout, cluster)
        return step.layer_transfers[0] - step.links.latency(Group(64, 1))

    assert gather_s("fp8") == pytest.approx(gather_s("bf16") / 2, rel=0.01)


def test_ring_attention_adds_up_the_blocks_of_its_ranks() -> None:
    model, cluster = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256), clusters()["h100x8"]

    def merged_bytes(cp: int) -> float:
        layers = StepModel(model, Layout(65536, 8, cp=cp), cluster).layers
        whole = layers.kernels.attention(32, 65536 / cp, 65536, (128, 128))
        return (layers.layer(mixture=False).forward.attention - whole[0]) * layers.kernels.memory_rate

    assert merged_bytes(1) == 0
    assert merged_bytes(4) == pytest.approx(4 * 10 * 16384 * 4096)


def test_small_layers_wait_longer_for_more_tensor_parallel_processes() -> None:
    model = PlannedModel(8, 1024, 16, 16, 64, 4096, 50304, gated=False)

    def forward_s(tp: int) -> float:
        return StepModel(model, Layout(512, 8, tp=tp), clusters()["a100x8"]).layers.layer(mixture=False).forward.total

    launch_s = StepModel(model, Layout(512, 8), clusters()["a100x8"]).constants.launch_s
    assert [forward_s(2 * tp) - forward_s(tp) for tp in (1, 2, 4)] == pytest.approx([2 * launch_s] * 3)


def test_selective_recomputation_widens_latent_queries_and_keys_again() -> None:
    latent = replace(MIXTURE, latent=LatentAttention(1536, 512, 64), head_dim=192, value_dim=128, kv_heads=32)

    def recomputed(model: PlannedModel, recompute: Recompute) -> Times:
        layout = Layout(4096, 8, recompute=recompute)
        return StepModel(model, layout, clusters()["h100x8"]).layers.layer(mixture=True).recomputed

    assert latent.latent_products() == [(1536, 32 * 192), (512, 32 * (128 + 128))]
    assert 0 < recomputed(latent, "selective").products < recomputed(latent, "full").products
    assert recomputed(latent, "selective").total == recomputed(latent, "selective").products
    assert recomputed(MIXTURE, "selective") == recomputed(latent, "none") == Times()


def test_tiles_of_float8_take_a_cast_of_their_own() -> None:
    def casts(precision: Precision, **traits: bool) -> float:
        layout = Layout(4096, 8, precision=precision, traits=Traits(**traits))
        kernels = StepModel(MIXTURE, layout, clusters()["h100x8"]).kernels
        return kernels.linear(4096, 4096, 4096)[0] - kernels.product(4096, 4096, 4096)

    assert casts("fp8", scales_tiles=True) == pytest.approx(3 * casts("fp8"))
    assert casts("bf16", scales_tiles=True) == 0


def test_matrices_whose_rows_start_anywhere_are_loaded_in_small_pieces() -> None:
    def head_s(vocab: int, **traits: bool) -> float:
        model = PlannedModel(8, 4096, 32, 32, 128, 14336, vocab)
        return StepModel(model, Layout(4096, 8, traits=Traits(**traits)), clusters()["a100x8"]).head.forward.products

    whole = head_s(50304)
    assert [head_s(vocab) / whole for vocab in (50296, 50300, 50298, 50257)] == pytest.approx([1, 2, 4, 8], rel=0.01)
    assert head_s(50257, pads_vocab=True) == whole, "Megatron pads the vocabulary"
    assert head_s(50257, pads_products=True) == pytest.approx(whole, rel=0.01), "Inductor pads the product"
    rows = [Traits(pads_vocab=pads).vocab_of_rank(50257, tp) for pads in (False, True) for tp in (1, 2, 8)]
    assert rows == [50257, 25129, 6283, 50304, 25216, 6400], "of the rank that has most"
    assert [traits_of({"software": name, "year": "2024"}).pads_vocab for name in ("Megatron-LM", "llm-foundry")] == [
        True,
        False,
    ]
    assert traits_of({"software": "torchtitan"}).pads_products


def test_experts_with_a_row_more_take_little_longer() -> None:
    kernels = StepModel(MIXTURE, Layout(4096, 8), clusters()["h100x8"]).kernels
    for rows in (127, 128, 255, 256):
        few, more = (kernels.product(size, 4096, 2048, 64, mean_rows=True) for size in (rows, rows + 1))
        assert few < more < 1.02 * few, "rows are a mean, so that a tile more or less is one for some experts"


def test_sizes_are_filled_up_to_whole_tiles() -> None:
    kernels = StepModel(MIXTURE, Layout(4096, 8), clusters()["a100x8"]).kernels
    wide = kernels.product(8192, 4096, 1920)
    assert kernels.product(8192, 4096, 1800) == pytest.approx(wide, rel=0.01)
    assert kernels.product(8192, 4096, 1792) < 0.96 * wide
    times = [kernels.attention(64, 4096, 4096, (width, width)) for width in (108, 128)]
    assert times[0] == times[1], "kernels of fused attention have widths of 96, 128 and so on"


def test_fsdp_copies_what_it_gathers_and_reduces() -> None:
    model = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256)

    def copied(cast: int, **traits: bool) -> float:
        layout = Layout(4096, 8, dp=8, zero=3, traits=Traits(gradient_bytes=cast, **traits))
        step = StepModel(model, layout, clusters()["h100x8"])
        assert step.copies_s <= step.data[1]
        return step.copies_s * step.kernels.memory_rate / model.num_parameters()

    assert [copied(cast, keeps_whole_copy=False) for cast in (2, 4)] == pytest.approx([8 + 4, 8 + 6])
    assert copied(2, keeps_whole_copy=False, copies_gathered=False) == pytest.approx(4), "FSDP1 has views"
    assert copied(4) == 0
    copies = [
        traits_of({"software": name}).copies_gathered
        for name in ("llm-foundry, FSDP", "fms-fsdp", "accelerate (FSDP2)")
    ]
    assert copies == [False, False, True]


def test_gradients_are_reduced_in_the_stated_precision() -> None:
    assert traits_of({"software": "torchtitan", "reduce_dtype": "bf16"}).gradient_bytes == 2
    assert traits_of({"software": "torchtitan"}).gradient_bytes == 4
    assert traits_of({"software": "fms-fsdp"}).gradient_bytes == 2
    with pytest.raises(ConfigError, match="reduce_dtype='int8': must be bf16 or fp32"):
        traits_of({"reduce_dtype": "int8"})

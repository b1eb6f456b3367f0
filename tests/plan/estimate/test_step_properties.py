"""What must hold for every prediction: physical limits, and how time and memory follow their causes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frog.plan.estimate.hardware import Cluster, clusters
from frog.plan.estimate.layer_time import Times
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Traits
from frog.plan.memory import kept_activations, layer_activations
from frog.plan.model import PlannedModel

POWERS = st.sampled_from([1, 2, 4, 8])
FLASH = Traits()


@st.composite
def models(draw: st.DrawFn) -> PlannedModel:
    heads = draw(st.sampled_from([8, 16, 32, 64]))
    experts, window = draw(st.sampled_from([0, 0, 8, 64])), draw(st.sampled_from([0, 0, 512, 4096]))
    return PlannedModel(
        layers=draw(st.sampled_from([8, 32, 61])),
        hidden=heads * 128,
        heads=heads,
        kv_heads=draw(st.sampled_from([8, heads])),
        head_dim=128,
        ffn=heads * 384,
        vocab=draw(st.sampled_from([32000, 128256])),
        gated=draw(st.booleans()),
        tied=draw(st.booleans()),
        experts=experts,
        experts_per_token=2 if experts else 0,
        expert_ffn=heads * 96 if experts else 0,
        layer_norms=draw(st.sampled_from([2, 4])),
        window=window,
        windowed_layers=4 if window else 0,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    dp, micro = draw(POWERS), draw(st.sampled_from([1, 2, 4]))
    return Layout(
        seq_len=draw(st.sampled_from([1024, 4096, 8192])),
        global_batch=dp * micro * draw(st.sampled_from([1, 3, 16])),
        micro_batch=micro,
        dp=dp,
        tp=draw(POWERS),
        pp=draw(st.sampled_from([1, 2, 4])),
        cp=draw(st.sampled_from([1, 2])),
        ep=draw(st.sampled_from([1, 2, 8])),
        schedule=draw(st.sampled_from(["gpipe", "1f1b", "zero_bubble"])),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=draw(st.booleans()),
        recompute=draw(st.sampled_from(["none", "selective", "alternate", "full"])),
        precision=draw(st.sampled_from(["bf16", "fp8"])),
        traits=draw(st.sampled_from([FLASH, Traits("scores", dropout=True), Traits("fused", overlaps_tensor=True)])),
    )


CLUSTERS = st.sampled_from(["a100x8", "h100x8", "gb200-nvl72", "l40sx8"]).map(lambda name: clusters()[name])


@settings(max_examples=150, deadline=None)
@given(models(), layouts(), CLUSTERS)
def test_step_is_never_faster_than_the_arithmetic_allows(model: PlannedModel, layout: Layout, cluster: Cluster) -> None:
    step = StepModel(model, layout, cluster).step
    peak = max(cluster.gpu.peak_bf16, cluster.gpu.peak_fp8 if layout.precision == "fp8" else 0)
    tokens = layout.global_batch * layout.seq_len
    assert step.total > model.model_flops_per_token(layout.seq_len) * tokens / (layout.num_gpus * peak)
    assert all(seconds >= 0 for seconds in vars(step).values())


@settings(max_examples=100, deadline=None)
@given(models(), layouts(), CLUSTERS, st.sampled_from(["network", "link", "memory"]))
def test_more_bandwidth_never_makes_a_step_slower(
    model: PlannedModel, layout: Layout, cluster: Cluster, which: str
) -> None:
    if which == "network":
        faster = replace(cluster, node_bandwidth=2 * cluster.node_bandwidth)
    else:
        name = f"{which}_bandwidth"
        faster = replace(cluster, gpu=replace(cluster.gpu, **{name: 2 * getattr(cluster.gpu, name)}))
    assert StepModel(model, layout, faster).step.total <= StepModel(model, layout, cluster).step.total * 1.000001


@settings(max_examples=150, deadline=None)
@given(models(), layouts(), CLUSTERS, st.sampled_from([1, 2, 3, 16]))
def test_more_oversubscription_never_makes_a_step_faster(
    model: PlannedModel, layout: Layout, cluster: Cluster, nodes_per_leaf: int
) -> None:
    trees = [
        replace(cluster, nodes_per_leaf=nodes_per_leaf, oversubscription=factor) for factor in (1.0, 1.5, 4.0, 64.0)
    ]
    times = [StepModel(model, layout, tree).step.total for tree in trees]
    assert times[0] == StepModel(model, layout, cluster).step.total, "a factor of 1 is the full bandwidth"
    assert all(later >= earlier * 0.999999 for earlier, later in pairwise(times))
    larger = replace(trees[3], nodes_per_leaf=layout.num_gpus)
    assert StepModel(model, layout, larger).step.total == times[0], "nothing leaves a leaf that contains all nodes"


@settings(max_examples=100, deadline=None)
@given(models(), layouts(), CLUSTERS)
def test_more_sharding_never_needs_more_memory_for_states(
    model: PlannedModel, layout: Layout, cluster: Cluster
) -> None:
    sizes = [StepModel(model, replace(layout, zero=zero), cluster).memory.states for zero in range(4)]
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=100, deadline=None)
@given(models(), layouts(), CLUSTERS, st.sampled_from(["dp", "tp", "pp", "cp"]))
def test_larger_degree_never_needs_more_memory_for_states(
    model: PlannedModel, layout: Layout, cluster: Cluster, axis: str
) -> None:
    larger = replace(layout, **{axis: 2 * getattr(layout, axis)})
    once = StepModel(model, layout, cluster).memory.states
    assert StepModel(model, larger, cluster).memory.states <= once * 1.000001


@settings(max_examples=100, deadline=None)
@given(models(), layouts(), CLUSTERS)
def test_recomputation_trades_time_for_activations(model: PlannedModel, layout: Layout, cluster: Cluster) -> None:
    without, full = replace(layout, recompute="none"), replace(layout, recompute="full")
    assert kept_activations(model, full) <= kept_activations(model, without)
    # As long as the network alone decides both, they are equal but for rounding.
    assert StepModel(model, full, cluster).step.total >= StepModel(model, without, cluster).step.total * (1 - 1e-12)


@settings(max_examples=100, deadline=None)
@given(models(), layouts(), CLUSTERS)
def test_twice_the_batch_takes_longer_but_at_most_twice(model: PlannedModel, layout: Layout, cluster: Cluster) -> None:
    once = StepModel(model, layout, cluster).step.total
    twice = StepModel(model, replace(layout, global_batch=2 * layout.global_batch), cluster).step.total
    assert once < twice <= 2.000001 * once


@pytest.mark.parametrize(
    ("shape", "layout", "published_gib"),
    [
        ((48, 6144, 64), Layout(2048, 4, 4, tp=8), 59.25),
        ((48, 6144, 64), Layout(2048, 4, 4, tp=8, sequence_parallel=True, recompute="selective"), 9.5625),
        ((96, 12288, 96), Layout(2048, 64, 1, tp=8, pp=8, virtual_stages=3), 66.84375),
        ((105, 20480, 128), Layout(2048, 280, 1, tp=8, pp=35, virtual_stages=3), 114.0234375),
        ((128, 25600, 160), Layout(2048, 512, 1, tp=8, pp=64), 131.25),
    ],
    ids=["22B", "22B-selective", "175B", "530B", "1T"],
)
def test_activations_agree_with_korthikanti(shape: tuple[int, int, int], layout: Layout, published_gib: float) -> None:
    layers, hidden, heads = shape
    model = PlannedModel(
        layers, hidden, heads, heads, hidden // heads, 4 * hidden, 51200, gated=False, tied=True, biases=True
    )
    layout = replace(layout, traits=Traits("scores", dropout=True))
    memory = StepModel(model, layout, clusters()["a100x8"]).memory
    assert memory.activations / 2**30 == pytest.approx(published_gib, rel=1e-3)


@pytest.mark.parametrize(
    ("degrees", "num_bytes"),
    [
        ({"pp": 8, "virtual_stages": 2}, 64 * 2 * 2 * 2 * 4096 * 4096),  # micro-batches, passes, chunks, 16 bits
        (
            {"tp": 16},
            64 * 32 * 2 * 2 * 2 * 1 / 2 * 2 * 4096 * 4096 / 8,
        ),  # layers, passes, all-reduces; sums of 2 nodes, 8 adapters
    ],
    ids=["pipeline", "tensor"],
)
def test_overlap_cannot_hide_more_than_the_network_carries(degrees: dict[str, int], num_bytes: float) -> None:
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    one_gpu_nodes = {"gpus_per_node": 1, "nvlink_domain": 1} if "pp" in degrees else {}
    slow = replace(clusters()["h100x8"], node_bandwidth=1e8 * (1 if one_gpu_nodes else 8), **one_gpu_nodes)
    traits = Traits("fused", overlaps_stages=True, overlaps_tensor=True, overlaps_parameters=True)
    layout = Layout(seq_len=4096, global_batch=64, traits=traits, **degrees)  # type: ignore[arg-type]
    assert StepModel(model, layout, slow).step.total > 0.9 * num_bytes / 1e8


def test_schedules_trade_bubble_and_memory() -> None:
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    layout = Layout(seq_len=4096, global_batch=32, pp=8)

    def bubble_and_activations(**changes: object) -> tuple[float, float]:
        step = StepModel(model, replace(layout, **changes), clusters()["h100x8"])  # type: ignore[arg-type]
        return step.step.bubble, step.memory.activations

    plain, kept = bubble_and_activations()
    assert bubble_and_activations(schedule="zero_bubble")[0] == pytest.approx(plain / 3)
    assert bubble_and_activations(schedule="gpipe") == pytest.approx((plain, kept * 32 / 8))
    interleaved = bubble_and_activations(virtual_stages=2)
    assert interleaved[0] < 0.6 * plain
    assert interleaved[1] == pytest.approx(kept * (1 + 7 / 16))


def test_gated_layer_keeps_three_tensors_of_the_ffn() -> None:
    plain = PlannedModel(2, 512, 4, 4, 128, 1024, 1000, gated=False)
    layout = Layout(seq_len=128, global_batch=1)
    gated = replace(plain, gated=True)
    assert layer_activations(gated, layout) - layer_activations(plain, layout) == 2 * 1024 * 128


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"dp": 3}, "global_batch=16 does not divide by dp=3 x micro_batch=1"),
        ({"pp": 64}, "pp=64 x virtual_stages=1 exceeds layers=32"),
        ({"virtual_stages": 2}, "virtual_stages=2: needs a pipeline, pp of at least 2"),
        ({"tp": 0}, "tp=0: must be at least 1"),
        ({"cp": 3}, "seq_len=4096 does not divide by cp=3"),
        ({"zero": 4}, "zero=4: must be 0 to 3"),
        ({"tp": 3}, "heads=4 do not divide by tp=3"),
        ({"ep": 2}, "ep=2: the model has no experts"),
        ({"dp": 8, "zero_group": 3}, "zero_group=3 does not divide dp x cp = 8"),
    ],
)
def test_impossible_layout_is_explained(changes: dict[str, int], problem: str) -> None:
    model = PlannedModel(32, 512, 4, 4, 128, 1024, 1000)
    layout = replace(Layout(seq_len=4096, global_batch=16), **changes)  # type: ignore[arg-type]
    assert problem in layout.problems(model)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"ep": 3}, "experts=8 do not divide by ep=3"),
        ({"ep": 8, "dp": 4}, "ep=8 does not divide dp x tp x cp = 4"),
        ({"ep": 8, "dp": 2, "tp": 4}, None),
    ],
)
def test_expert_parallelism_needs_experts_and_ranks(changes: dict[str, int], problem: str | None) -> None:
    model = PlannedModel(32, 512, 4, 4, 128, 1024, 1000, experts=8, experts_per_token=2, expert_ffn=1024)
    layout = replace(Layout(seq_len=4096, global_batch=16), **changes)  # type: ignore[arg-type]
    assert layout.problems(model) == ([] if problem is None else [problem])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, None),
        ({"kv_heads": 2}, None),  # Megatron-Core copies them.
        ({"kv_heads": 3}, "kv_heads=3 neither divide by tp=4 nor divide it"),
        ({"ffn": 1026}, "ffn=1026 does not divide by tp=4"),
        ({"ffn": 1026, "experts": 8}, None),
        ({"expert_ffn": 514, "experts": 8}, "expert_ffn=514 does not divide by tp=4, which splits experts if ep=1"),
        ({"expert_ffn": 514, "experts": 8, "ep": 2}, None),
        ({"cp": 2048}, None),
        ({"cp": 2048, "sequence_parallel": True}, "seq_len / cp = 2 does not divide by tp=4"),
    ],
)
def test_tensors_that_tensor_parallel_ranks_cannot_split_are_named(
    changes: dict[str, int], problem: str | None
) -> None:
    model = PlannedModel(32, 1536, 12, 4, 128, 1024, 1000, experts_per_token=2, expert_ffn=512)
    layout = Layout(seq_len=4096, global_batch=16, tp=4)
    own = {name: size for name, size in changes.items() if hasattr(model, name)}
    of_layout = {name: size for name, size in changes.items() if name not in own}
    problems = replace(layout, **of_layout).problems(replace(model, **own))  # type: ignore[arg-type]
    assert [found[: len(problem or "")] for found in problems] == ([] if problem is None else [problem])


def test_micro_batches_that_do_not_divide_by_an_interleaved_pipeline_are_said() -> None:
    model = PlannedModel(32, 512, 4, 4, 128, 1024, 1000)
    layout = Layout(seq_len=4096, global_batch=18, pp=4, virtual_stages=2)
    assert layout.notes(model)[0].startswith("18 micro-batches do not divide by pp 4")
    assert replace(layout, global_batch=16).notes(model) == replace(layout, virtual_stages=1).notes(model) == []


def test_other_stages_fill_the_pipeline_without_the_output_matrix_of_the_last() -> None:
    model = PlannedModel(8, 4096, 32, 8, 128, 14336, 512000)
    step = StepModel(model, Layout(seq_len=4096, global_batch=8, pp=4), clusters()["h100x8"])
    layers = step.layers.layer(mixture=False).total.total * 6
    assert step.other_stages == pytest.approx(layers)
    assert step.step.bubble == pytest.approx(layers + 3 * step.sends)


def test_chunks_hide_the_reduction_of_those_that_finish_first() -> None:
    def exposed_s(seconds: float, **layout: int) -> float:
        planned = Layout(seq_len=4096, global_batch=64, **layout)  # type: ignore[arg-type]
        step = StepModel(PlannedModel(32, 4096, 32, 8, 128, 14336, 128256), planned, clusters()["h100x8"])
        return seconds - step.hidden_transfer(seconds, 1.0)

    assert exposed_s(0.5) == 0
    assert exposed_s(3.0) == 2.0, "behind one pass"
    assert exposed_s(3.0, pp=4) == 2.0, "one chunk: its gradients are complete in the last pass"
    assert exposed_s(3.0, pp=4, virtual_stages=2) == 1.0, "the last of two chunks: half of it"
    assert exposed_s(30.0, pp=4, virtual_stages=2) == 27.5, (
        "all that four passes through a chunk and a half do not hide"
    )
    assert exposed_s(3.0, pp=4, virtual_stages=2, micro_batch=64) == 2.0, "a single micro-batch"


MIXTURE = PlannedModel(
    16, 4096, 32, 8, 128, 14336, 128256, experts=64, experts_per_token=8, expert_ffn=2048, gated=True
)


@pytest.mark.parametrize("gbit_s", [200, 3200, 100_000])
def test_overlapped_experts_take_the_longer_of_both_and_a_slowdown(gbit_s: float) -> None:
    cluster = replace(clusters()["h100x8"], node_bandwidth=gbit_s * 1e9 / 8)
    layout = Layout(seq_len=4096, global_batch=64, dp=16, ep=16)
    usual = StepModel(MIXTURE, layout, cluster)
    beside = StepModel(MIXTURE, replace(layout, traits=Traits(overlaps_experts=True)), cluster)
    before, after = usual.layers.layer(mixture=True), beside.layers.layer(mixture=True)
    assert replace(before.total, expert=0) == replace(after.total, expert=0)
    kernels, size = usual.kernels, usual.layers.expert_bytes
    for one, other in ((before.forward, before.backward), (before.backward, before.forward)):
        computed = other.products + other.attention + other.memory
        hidden = min(one.expert, computed)
        arrived = 15 / 16 * sum(size) * hidden / one.expert
        lost = kernels.overlap_cost * hidden + 3 * arrived / kernels.memory_rate
        overlapped = after.forward if one is before.forward else after.backward
        assert overlapped.expert == pytest.approx(one.expert - max(0, hidden - lost))
    assert before.total.total * 0.5 < after.total.total < before.total.total


@pytest.mark.parametrize(("layers", "window"), [(16, 1024), (32, 1024), (16, 8192), (16, 100_000)])
def test_layers_with_a_window_take_the_time_of_the_tokens_that_they_see(layers: int, window: int) -> None:
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    layout, cluster = Layout(8192, 8, dp=8), clusters()["h100x8"]
    windowed = StepModel(replace(model, window=window, windowed_layers=layers), layout, cluster)
    keys = (
        8192 if window >= 8192 else 2 * 1024 - 1024**2 / 8192
    )  # W - W^2 / 2T tokens, where causal attention has T / 2
    blocks = 1 - layers / 32 + layers / 32 * (keys + 128) / (8192 + 128)
    whole = StepModel(model, layout, cluster)
    layer, other = windowed.layers.layer(mixture=False), whole.layers.layer(mixture=False)
    for ours, theirs in ((layer.forward, other.forward), (layer.backward, other.backward)):
        assert ours.attention == pytest.approx(theirs.attention * blocks)
        assert ours.products == theirs.products
    ratio = windowed.model.attention_flops_per_token(8192) / model.attention_flops_per_token(8192)
    assert ratio == pytest.approx(1 - layers / 32 + layers / 32 * keys / 8192)


def test_dispatch_in_float8_sends_three_quarters_of_the_bytes() -> None:
    cluster = clusters()["h100x8"]
    layout = Layout(seq_len=65536, global_batch=64, dp=16, ep=16, precision="fp8")
    short = replace(layout, traits=Traits(dispatches_fp8=True))
    expert = [
        StepModel(MIXTURE, one, cluster).layers.layer(mixture=True).forward.expert
        for one in (layout, short, replace(short, precision="bf16"))
    ]
    assert expert[1] == pytest.approx(0.75 * expert[0], rel=1e-2)
    assert expert[2] == expert[0], "16-bit tokens stay in 16 bits"


def test_zero_group_larger_than_the_data_parallel_ranks_means_all_of_them() -> None:
    layout = Layout(seq_len=4096, global_batch=16, dp=4, zero_group=8)
    assert layout.problems(PlannedModel(32, 512, 4, 4, 128, 1024, 1000)) == []
    assert layout.shard == 4


def test_times_add_up_and_scale() -> None:
    one = Times(products=1.0, memory=2.0)
    assert (one + one * 2).total == 9.0


def sharded_on(gbit_s: float) -> StepModel:
    """Return FSDP over 64 GPUs with this network of a node."""
    cluster = replace(clusters()["h100x8"], node_bandwidth=gbit_s * 1e9 / 8)
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    return StepModel(model, Layout(seq_len=4096, global_batch=256, micro_batch=4, dp=64, zero=3), cluster)


def test_network_slower_than_the_computation_alone_decides_the_step() -> None:
    steps = [sharded_on(gbit_s) for gbit_s in (1e6, 6400, 3200, 1600, 800, 400, 200, 100, 10)]
    for step in steps:
        gather, reduce, _ = step.layer_transfers
        communication, computation = 32 * (2 * gather + reduce), step.stage_seconds[0]
        arrived = 8 * 63 / 64 * step.model.num_parameters()  # gathered twice in 2 bytes, reduced in 4
        lost = 20 / 112 * communication + 3 * arrived / step.kernels.memory_rate
        together = max(communication, computation + lost)
        assert sum(step.data) + computation == pytest.approx(gather + reduce + together)
        assert 0 <= step.data[1] <= lost
    assert steps[0].data[1] > 0, "a fast network hides behind the computation, and slows it down"
    assert steps[-1].data[1] == 0, "computation that ends before the communication costs nothing"
    assert all(one.step.total <= other.step.total for one, other in pairwise(steps))


def test_no_communication_slows_nothing() -> None:
    step = sharded_on(3200)
    assert step.layers.slowed(0.0, 0.0, 0.0) == 0
    assert replace(step, layout=replace(step.layout, dp=1, global_batch=4)).data == (0, 0)


def test_only_bytes_of_other_ranks_arrive() -> None:
    model, cluster = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256), clusters()["h100x8"]
    numel = model.num_parameters()

    def arrived(model: PlannedModel = model, **layout: int) -> tuple[float, float]:
        return StepModel(model, Layout(4096, 64, **layout), cluster).step_bytes

    assert arrived(dp=1) == (0, 0)
    assert arrived(dp=2)[0] == 2 * 4 * numel / 2, "an all-reduce"
    assert arrived(dp=8, zero=1) == (4 * numel * 7 / 8, 2 * numel * 7 / 8)
    halves = arrived(dp=8, zero=1, zero_group=4)
    assert halves == (2 * 4 * numel * 7 / 8, 2 * numel * 3 / 4), "timed as an all-reduce"
    experts = replace(model, experts=8, experts_per_token=2, expert_ffn=14336)
    shared = Layout(4096, 64, dp=8, ep=8).stage_parameters(experts)[0]
    assert arrived(experts, dp=8, ep=8)[0] == 2 * 4 * shared * 7 / 8, "experts with one copy send nothing"
    hybrid = StepModel(model, Layout(4096, 64, dp=16, zero=3, zero_group=8), cluster)
    assert hybrid.sharded_bytes == 8 * numel * 7 / 8 + 2 * 4 * numel / 8 / 2, "two replicas of each shard"


@pytest.mark.parametrize("cluster", ["h100x8", "a100x8"])
def test_hiding_never_costs_more_than_waiting(cluster: str) -> None:
    model = PlannedModel(8, 4096, 32, 8, 128, 14336, 128256)

    def tensor_s(**traits: Any) -> float:
        layout = Layout(4096, 8, tp=2, sequence_parallel=True, traits=Traits(**traits))
        return StepModel(model, layout, clusters()[cluster]).layers.layer(mixture=False).forward.tensor

    usual, light = tensor_s(overlaps_tensor=True), tensor_s(overlaps_tensor=True, collective_sms=6)
    assert light < usual < 0.9 * tensor_s()
    assert tensor_s(overlaps_tensor=True, collective_sms=1000) <= tensor_s()

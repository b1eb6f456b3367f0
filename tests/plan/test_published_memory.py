"""Memory of published runs: what the allocator reserved at most, as torchtitan prints it, and InternEvo's figures; and
what torch's own tracker counts, from `benchmarks/planner_memory.py`.

No constant of the planner is fitted on memory. Figures: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md
and llama3-8b_h200_202506_trainy-whitefiber.md; InternLM/InternEvo, doc/en/train_performance.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from frog.plan.estimate.hardware import clusters
from frog.plan.estimate.predict import predict_row
from frog.plan.estimate.rows import planned_run
from frog.plan.estimate.step_time import StepModel
from frog.plan.layout import Layout, Traits
from frog.plan.memory import USABLE, kept_activations, layer_activations, loss_bytes
from frog.plan.model import PlannedModel

LLAMA_8B = {
    "row_id": "llama3-8b",
    "year": "2024",
    "gpu": "H100-96GB-HBM2e-500W",
    "tp": "1",
    "pp": "1",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "gated_ffn": "yes",
    "vocab": "128256",
    "seq_len": "8192",
    "micro_batch": "2",
    "zero": "3",
    "recompute": "selective",
    "recompute_detail": "selective op",
    "precision": "bf16",
    "software": "torchtitan (PyTorch FSDP2, torch.compile)",
}
LLAMA_70B = {
    **LLAMA_8B,
    "layers": "80",
    "hidden": "8192",
    "heads": "64",
    "ffn": "28672",
    "dp": "32",
    "tp": "8",
    "micro_batch": "16",
    "recompute": "full",
    "recompute_detail": "",
    "precision": "fp8",
}
INTERNLM_7B = {
    "row_id": "internlm-7b",
    "year": "2023",
    "gpu": "A800-80GB",
    "dp": "1",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn": "11008",
    "gated_ffn": "yes",
    "vocab": "103168",
    "seq_len": "2048",
    "micro_batch": "1",
    "zero": "1",
    "recompute": "full",
    "seq_parallel": "no",
    "precision": "bf16",
    "software": "InternEvo",
}
LLAMA_1B = PlannedModel(16, 2048, 32, 8, 64, 8192, 128256, tied=True)
LONG = {"micro_batch": "1", "recompute": "full", "recompute_detail": "", "precision": "fp8"}


def planned_gib(row: dict[str, str], num_gpus: int, **cells: str) -> float:
    row = {**row, "n_gpus": str(num_gpus), **cells}
    dp = num_gpus // (int(row.get("tp", "1")) * int(row.get("pp", "1")) * int(row.get("cp", "1")))
    row = {"dp": str(dp), **row, "global_batch": str(4 * dp * int(row["micro_batch"]))}
    memory = predict_row(row).memory_gib
    assert memory is not None
    return memory


@pytest.mark.parametrize(
    ("row", "num_gpus", "cells", "published_gib"),
    [
        (LLAMA_8B, 8, {}, 77.0),
        (LLAMA_8B, 8, {"software": "torchtitan (PyTorch FSDP2)"}, 82.4),
        (LLAMA_8B, 8, {"precision": "fp8"}, 76.8),
        (LLAMA_8B, 128, {}, 62.0),
        (LLAMA_8B, 128, {"precision": "fp8"}, 61.8),
        (LLAMA_8B, 8, {**LONG, "seq_len": "32768"}, 83.9),
        (LLAMA_8B, 8, {**LONG, "seq_len": "262144", "cp": "8"}, 84.5),
        (LLAMA_8B, 32, {"gpu": "H200-141GB", "year": "2025", "precision": "fp8"}, 47.96),
        (LLAMA_8B, 64, {"gpu": "H200-141GB", "year": "2025", "precision": "fp8"}, 46.97),
        (LLAMA_70B, 256, {"software": "torchtitan (PyTorch FSDP2, torch.compile, async TP)"}, 67.6),
    ],
)
def test_torchtitan_s_memory_is_within_ten_percent(
    row: dict[str, str], num_gpus: int, cells: dict[str, str], published_gib: float
) -> None:
    assert planned_gib(row, num_gpus, **cells) == pytest.approx(published_gib, rel=0.10)


@pytest.mark.parametrize(("tp", "pp", "published"), [(1, 3, 75), (4, 1, 61), (1, 4, 69), (1, 5, 62), (1, 6, 56)])
def test_internevo_s_memory_is_within_four_percent(tp: int, pp: int, published: float) -> None:
    assert planned_gib(INTERNLM_7B, tp * pp, tp=str(tp), pp=str(pp)) == pytest.approx(published, rel=0.04)


def test_internevo_s_optimizer_has_its_own_tensors_of_each_share_at_every_stage_of_zero() -> None:
    """Counted: many layers and few activations, so that the optimizer's step is the moment that needs most."""
    model = replace(LLAMA_1B, layers=64)

    def temporary(zero: int, software: str = "InternEvo", dp: int = 8) -> float:
        cells = {"software": software, "zero": str(zero), "seq_len": "128", "global_batch": str(dp), "n_gpus": str(dp)}
        return planned_run(model, {**cells, "year": "2024"}, clusters()["h100x8"]).step.memory.temporary

    for dp in (2, 8):
        shares = [temporary(zero, dp=dp) * dp for zero in (1, 2, 3)]
        assert shares == pytest.approx([14 * model.num_parameters()] * 3)
    assert temporary(3, "DeepSpeed") < temporary(3) / 10


def fsdp_gib(num_gpus: int, tp: int, recompute: str) -> float:
    """Return the planned memory of Llama 3.2 1B with FSDP2 and sequence parallelism, without the allocator's share."""
    cells = {"software": "FSDP2", "seq_len": "8192", "zero": "3", "seq_parallel": "yes", "recompute": recompute}
    batch = {"n_gpus": str(num_gpus), "tp": str(tp), "micro_batch": "1", "global_batch": str(2 * num_gpus // tp)}
    memory = planned_run(LLAMA_1B, {**cells, **batch}, clusters()["h100x8"]).step.memory
    return (memory.total - memory.allocator) / 2**30


@pytest.mark.parametrize(("recompute", "tracked_gib"), [("none", 15.47), ("full", 9.52)])
def test_fsdp_with_tp_needs_torch_s_parallel_loss_as_its_tracker_counts(recompute: str, tracked_gib: float) -> None:
    assert fsdp_gib(16, 2, recompute) == pytest.approx(tracked_gib, rel=0.01)


@pytest.mark.parametrize(("tp", "tracked_gib"), [(2, 17.58), (4, 8.81), (8, 4.42)])
def test_single_fsdp_rank_holds_cast_copies_as_torch_s_tracker_counts(tp: int, tracked_gib: float) -> None:
    """The copies are 1.4 % of the memory."""
    assert fsdp_gib(tp, tp, "full") == pytest.approx(tracked_gib, rel=0.005)


def test_selective_recomputation_keeps_every_second_product() -> None:
    """Llama 3 8B, for each token in 16 bits: the layer's input, q, v, attention's output, gate and down."""
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    layout = Layout(seq_len=8192, global_batch=1, recompute="alternate")
    assert kept_activations(model, layout) == 8192 * 2 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096)
    assert kept_activations(model, layout) < 0.6 * layer_activations(model, layout)


def test_loss_of_each_program_keeps_other_tensors() -> None:
    model = PlannedModel(32, 4096, 32, 8, 128, 14336, 128256)
    layout = Layout(seq_len=8192, global_batch=1)
    logits = 8192 * 128256
    assert loss_bytes(model, layout) == 12 * logits
    assert loss_bytes(model, replace(layout, traits=Traits(parallel_loss=True))) == 12 * logits
    assert loss_bytes(model, replace(layout, traits=Traits(fuses_loss=True))) == 4 * logits
    split = replace(layout, tp=8, traits=Traits(parallel_loss=True, fuses_loss=True))
    assert loss_bytes(model, split) == 16 * logits / 8 + 2 * 8192 * 4096


def test_optimizer_s_own_tensors_count_where_they_exceed_the_activations() -> None:
    model = PlannedModel(2, 4096, 32, 8, 128, 14336, 1000)

    def temporary(seq_len: int, step_bytes: int) -> float:
        layout = Layout(seq_len=seq_len, global_batch=1, traits=Traits(step_bytes=step_bytes))
        memory = StepModel(model, layout, clusters()["a100x8"]).memory
        return memory.activations + memory.temporary

    assert temporary(16, 14) == 14 * model.num_parameters()
    assert temporary(16, 0) < temporary(16, 14)
    assert temporary(65536, 14) == temporary(65536, 0)


def test_freed_blocks_of_the_norm_stay_while_the_gpu_has_room() -> None:
    model, cluster = PlannedModel(32, 2048, 16, 16, 128, 8192, 32000), clusters()["a100x8"]

    def total(gpu_bytes: float, norm_bytes: int) -> float:
        layout = Layout(1024, 1, traits=Traits(step_bytes=14, norm_bytes=norm_bytes))
        own = replace(cluster, gpu=replace(cluster.gpu, memory=gpu_bytes))
        return StepModel(model, layout, own).memory.total

    needed, copies = total(80e9, 0), 4 * model.num_parameters()
    assert total(2 * needed, 4) == pytest.approx(needed + copies)
    assert total((needed + copies / 2) / USABLE, 4) == pytest.approx(needed + copies / 2, rel=1e-3)
    assert total((needed + copies / 2) / USABLE, 4) < needed + copies / 2
    assert total(needed, 4) == needed

"""The parts of a step's time and memory for many layouts: predictions.json has them to nine digits.

Other tests compare predictions with published runs, within percents. Here no part may change unnoticed. After new
constants or another formula: FROG_REWRITE_GOLDEN=1 pytest -n 0 tests/plan/estimate/test_kept_predictions.py, and read
the difference.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from frog.plan.estimate.explain import explain_step
from frog.plan.estimate.rows import read_row

KEPT = Path(__file__).with_name("predictions.json")
BASE = {
    "gpu": "H100-80GB",
    "n_gpus": "64",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "ffn": "14336",
    "gated_ffn": "yes",
    "vocab": "128256",
    "seq_len": "8192",
    "global_batch": "256",
    "micro_batch": "2",
    "dp": "64",
    "tp": "1",
    "pp": "1",
    "zero": "1",
    "seq_parallel": "no",
    "year": "2024",
    "precision": "bf16",
    "recompute": "none",
    "inter_node_gbit_s": "3200",
    "software": "Megatron-Core",
}
EXPERTS = {"experts": "16", "experts_per_token": "2", "expert_ffn": "7168", "shared_experts": "1", "ep": "8"}
LATENT = "MLA attention (q_lora 1536, kv_lora 512, qk 128+64, v 128); first 3 layers dense, multi-token-prediction"
ROWS: dict[str, dict[str, str]] = {
    "data": {},
    "no sharding": {"zero": "0"},
    "zero 2": {"zero": "2"},
    "zero 3": {"zero": "3", "software": "PyTorch FSDP"},
    "zero 3 in groups": {"zero": "3", "zero_group": "8", "software": "PyTorch FSDP"},
    "deepspeed": {"zero": "2", "software": "DeepSpeed"},
    "tensor": {"tp": "8", "dp": "8"},
    "sequence": {"tp": "8", "dp": "8", "seq_parallel": "yes"},
    "context": {"cp": "4", "dp": "16", "seq_len": "32768"},
    "pipeline": {"pp": "4", "dp": "16", "virtual_stages": "1"},
    "interleaved": {"pp": "4", "dp": "16", "virtual_stages": "4", "schedule": "interleaved"},
    "gpipe": {"pp": "4", "dp": "16", "virtual_stages": "1", "schedule": "gpipe"},
    "zero bubble": {"pp": "4", "dp": "16", "virtual_stages": "1", "schedule": "zero bubble"},
    "all": {"tp": "4", "pp": "2", "cp": "2", "dp": "4", "seq_parallel": "yes", "virtual_stages": "2"},
    "recomputed": {"recompute": "full", "tp": "2", "dp": "32"},
    "selective": {"recompute": "selective", "tp": "2", "dp": "32"},
    "fp8": {"precision": "fp8", "tp": "2", "dp": "32"},
    "fp16": {"precision": "fp16", "gpu": "A100-80GB", "n_gpus": "16", "dp": "16"},
    "old": {"gated_ffn": "no", "kv_heads": "", "ffn": "", "gpu": "V100-32GB", "precision": "fp16", "year": "2020"},
    "slow network": {"inter_node_gbit_s": "100"},
    "one node": {"n_gpus": "8", "dp": "2", "tp": "4"},
    "small": {"n_gpus": "1", "dp": "1", "global_batch": "4", "layers": "4"},
    "experts": {**EXPERTS},
    "experts of far nodes": {**EXPERTS, "ep": "16", "pp": "2", "dp": "32", "virtual_stages": "1"},
    "experts and tensor": {**EXPERTS, "tp": "2", "dp": "32", "seq_parallel": "yes"},
    "overlapped experts": {**EXPERTS, "overlap_moe": "yes", "micro_batch": "1"},
    "latent": {**EXPERTS, "kv_heads": "", "arch_notes": LATENT, "software": "HAI-LLM", "micro_batch": "1"},
    "window": {"arch_notes": "sliding window 128 in every second layer"},
    "tied": {"tied_embeddings": "yes", "tp": "8", "dp": "8"},
    "bridge": {"software": "Megatron-Bridge 25.09", "precision": "fp8", "tp": "2", "dp": "32"},
}


def parts_of(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers in nested dataclasses, tuples and lists by their names."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, float(value)
    elif is_dataclass(value):
        for field in fields(value):
            yield from parts_of(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            yield from parts_of(each, f"{name}.{number}")


def prediction(row: dict[str, str]) -> dict[str, float]:
    step = read_row({"row_id": "x", **BASE, **row}).step
    found = {
        "step": step.step, "memory": step.memory, "stages": step.stages, "data": step.data, "head": step.head,
        "layer": step.layers.layer(mixture=False), "explained": [term.value for term in explain_step(step)],
    }  # fmt: skip
    return {name: float(f"{number:.9g}") for part, value in found.items() for name, number in parts_of(value, part)}


@pytest.fixture(scope="module")
def kept() -> Iterator[dict[str, dict[str, float]]]:
    known: dict[str, dict[str, float]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    yield known
    if os.environ.get("FROG_REWRITE_GOLDEN"):
        lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in ROWS]
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.parametrize("name", ROWS)
def test_no_part_of_a_prediction_changes_unnoticed(name: str, kept: dict[str, dict[str, float]]) -> None:
    found = prediction(ROWS[name])
    assert all(math.isfinite(number) for number in found.values())
    if os.environ.get("FROG_REWRITE_GOLDEN"):
        kept[name] = found
    assert found == pytest.approx(kept[name], rel=1e-8), "if the change is meant, rewrite predictions.json: see above"

"""Products in MXFP8 and NVFP4: rates, casts, kept bytes, refusals, and published runs on which nothing is fitted."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from frog.cli import main
from frog.core.errors import ConfigError
from frog.plan.estimate.hardware import clusters, gpus
from frog.plan.estimate.predict import predict_row
from frog.plan.estimate.requests import request_run
from frog.plan.estimate.sources import NamedModel
from frog.plan.estimate.step_time import StepModel
from frog.plan.estimate.utilization import peak_flops
from frog.plan.layout import Layout, Precision
from frog.plan.memory import kept_tensors
from frog.plan.model import PlannedModel

MODEL = PlannedModel(24, 4096, 32, 32, 128, 16384, 32000)
B300 = clusters()["b300x8"]
RUNS = Path(__file__).parents[3] / "benchmarks" / "measured_runs.csv"


def step_of(precision: Precision) -> StepModel:
    return StepModel(MODEL, Layout(15872, 8, dp=8, precision=precision), B300)


@pytest.mark.parametrize("name", ["B200-180GB", "GB200-186GB", "B300-270GB", "GB300-277GB"])
def test_rates_of_blocks_stay_between_float8_and_the_peaks(name: str) -> None:
    gpu = gpus()[name]
    assert 0.9 * gpu.sustained_fp8 < gpu.sustained_mxfp8 < gpu.sustained_fp8
    assert gpu.sustained_fp8 < gpu.sustained_nvfp4 < gpu.peak_nvfp4
    assert (gpu.peak_narrow("mxfp8"), gpu.peak_narrow("nvfp4")) == (gpu.peak_fp8, gpu.peak_nvfp4)


@pytest.mark.parametrize(
    ("precision", "measured_ms"), [("bf16", 13.102), ("fp8", 6.812), ("mxfp8", 7.161), ("nvfp4", 3.764)]
)
def test_products_of_a_layer_take_what_was_measured_on_a_b300(precision: Precision, measured_ms: float) -> None:
    """Transformer Engine's page on profiling products: 15,872 rows, widths of 4,096 and 16,384, three products each.

    float8 and bf16 have rates of another source; the other two have float8's ratio.
    """
    kernels = step_of(precision).kernels
    widths = [(4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096)]
    shapes = [
        shape
        for inner, columns in widths
        for shape in ((15872, inner, columns), (15872, columns, inner), (inner, 15872, columns))
    ]
    planned_ms = 1e3 * sum(kernels.product(*shape) for shape in shapes)
    assert planned_ms == pytest.approx(measured_ms, rel=0.2)


@pytest.mark.parametrize(
    ("precision", "num_bytes"), [("fp8", 2.0), ("mxfp8", 2 + 2 * 33 / 32), ("nvfp4", 4 + 2 * 9 / 16)]
)
def test_casts_read_and_write_two_copies_with_their_scales(precision: Precision, num_bytes: float) -> None:
    """Blocks of 32 numbers of a byte, or of 16 of half a byte, have a scale of one byte."""
    kernels = step_of(precision).kernels
    forward, _ = kernels.linear(1024, 4096, 4096)
    assert forward - kernels.product(1024, 4096, 4096) == pytest.approx(kernels.moves(num_bytes * 1024 * 4096))


@pytest.mark.parametrize(
    ("precision", "each"), [("bf16", 2), ("fp8", 1), ("mxfp8", (32 + 1) / 32), ("nvfp4", (16 / 2 + 1) / 16)]
)
def test_inputs_of_products_are_kept_in_their_format(precision: Precision, each: float) -> None:
    layout = step_of(precision).layout
    kept = {kept.what: kept for kept in kept_tensors(MODEL, layout)}
    assert kept["inputs of both blocks"].numbers * kept["inputs of both blocks"].num_bytes == 2 * 4096 * each
    assert kept["input of the FFN's last product"].num_bytes == each


def test_output_matrix_stays_in_16_bits_and_the_peak_is_of_the_format() -> None:
    heads = [step_of(precision).head.forward.products for precision in ("bf16", "mxfp8", "nvfp4")]
    assert heads[0] == heads[1] == heads[2]
    peaks = {precision: peak_flops(step_of(precision)) / 1e12 for precision in ("bf16", "fp8", "mxfp8", "nvfp4")}
    assert peaks == pytest.approx({"bf16": 2250, "fp8": 4500, "mxfp8": 4500, "nvfp4": 13500})


def test_gathers_stay_in_16_bits() -> None:
    sizes = {precision: step_of(precision).layout.gathered_bytes for precision in ("bf16", "fp8", "mxfp8", "nvfp4")}
    assert sizes == {"bf16": 2, "fp8": 1, "mxfp8": 2, "nvfp4": 2}


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_gpu_without_the_format_is_named(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "config/llama3_8b.json", "--precision", precision, "--cluster"]
    assert main([*command, "h100x8"]) == 2
    assert f"precision={precision}: H100-80GB has no {precision.upper()} products" in capsys.readouterr().err
    assert main([*command, "b200x8"]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith(f", {precision}")
    assert main(["plan", "search", *command[1:], "b200x8", "--global-batch", "64"]) == 0
    assert f", {precision}" in capsys.readouterr().out


def test_own_profile_without_the_rates_says_which_keys_it_lacks() -> None:
    gpu = replace(gpus()["B200-180GB"], name="own", sustained_mxfp8=0.0, sustained_nvfp4=0.0)
    cluster = replace(B300, gpu=gpu)
    for precision, keys in (("mxfp8", "sustained_mxfp8"), ("nvfp4", "peak_nvfp4 and sustained_nvfp4")):
        with pytest.raises(ConfigError, match=f"the GPU's profile has no {precision.upper()} products; add {keys}"):
            request_run(NamedModel(MODEL), {"precision": precision}, cluster, 8)


def test_published_mixtures_of_2025_are_predicted_although_none_is_fitted() -> None:
    with RUNS.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["source_id"] == "bridge_mixtures"]
    predicted = [predict_row(row) for row in rows]
    errors = [
        (one.step_time_s or math.nan) / float(row["target_step_s"]) - 1
        for one, row in zip(predicted, rows, strict=True)
    ]
    inside = [abs(math.log1p(error)) < math.log1p(one.spread) for error, one in zip(errors, predicted, strict=True)]
    assert len(rows) == 27
    assert statistics.mean(map(abs, errors)) < 0.24
    assert sum(inside) == 22


def test_published_runs_on_blackwell_are_predicted_although_none_is_fitted() -> None:
    errors: dict[str, list[float]] = {}
    with RUNS.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["source_id"] == "bridge_blackwell"]
    for row in rows:
        predicted = predict_row(row)
        assert predicted.step_time_s is not None, predicted.why
        error = predicted.step_time_s / float(row["target_step_s"]) - 1
        errors.setdefault("mixture" if row["experts"] else row["precision"], []).append(error)
        assert abs(math.log1p(error)) < math.log1p(predicted.spread), row["row_id"]
    means = {precision: 100 * statistics.mean(map(abs, found)) for precision, found in errors.items()}
    counts = {kind: len(found) for kind, found in errors.items()}
    assert counts == {"fp8": 8, "mxfp8": 8, "nvfp4": 4, "mixture": 4}
    assert max(means["fp8"], means["mxfp8"]) < 11
    assert means["nvfp4"] < 20
    assert means["mixture"] < 14

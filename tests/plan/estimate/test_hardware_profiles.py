"""GPUs and clusters: units, sources, and limits that no number may break."""

from __future__ import annotations

from importlib.resources import files

import pytest

from frog.core.errors import ConfigError
from frog.core.schema import parse_toml
from frog.plan.estimate.hardware import clusters, default_cluster, gpu_named, gpus, parse_quantity, similar_gpu


def test_every_number_of_a_gpu_has_a_source() -> None:
    tables = parse_toml(files("frog.plan.estimate").joinpath("gpus.toml").read_text())
    entries = [entry for table in tables.values() for entry in table.values()]
    assert len(entries) > 150
    assert all(set(entry) == {"value", "source"} and len(entry["source"]) > 5 for entry in entries)


@pytest.mark.parametrize("name", gpus())
def test_sustained_rates_stay_below_the_peak(name: str) -> None:
    gpu = gpus()[name]
    assert 0.3 * gpu.peak_bf16 < gpu.sustained_bf16 < gpu.peak_bf16
    assert gpu.sustained_fp8 <= gpu.peak_fp8
    assert gpu.attention <= gpu.attention_fused <= gpu.sustained_bf16
    assert gpu.memory_bandwidth > gpu.link_bandwidth


def test_clusters_name_known_gpus_and_have_whole_nodes() -> None:
    for cluster in clusters().values():
        assert cluster.nvlink_domain % cluster.gpus_per_node == 0
        assert cluster.network_bandwidth_per_gpu <= cluster.gpu.link_bandwidth * 5
    assert default_cluster(gpu_named("H100-80GB")).node_bandwidth == 400e9


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [("3200 Gbit/s", "B/s", 400e9), ("80 GB", "B", 80e9), ("312 TFLOP/s", "FLOP/s", 312e12), ("700 W", "W", 700.0)],
)
def test_quantities_become_base_units(text: str, unit: str, number: float) -> None:
    assert parse_quantity(text, unit, "x") == pytest.approx(number)


@pytest.mark.parametrize("text", [400, "400", "400 Gb", "fast", "80 GB", None])
def test_quantity_without_the_right_unit_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match="must be a number with a unit"):
        parse_quantity(text, "B/s", "network")


def test_unknown_gpu_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError) as raised:
        gpu_named("H100-80")
    assert "did you mean H100-80GB?" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("B200-192GB", "B200-180GB"),
        ("V100-32GB", "V100-32GB"),
        ("H100-PCIe", "H100-PCIe-80GB"),
        ("H100-SXM-80GB", "H100-80GB"),
        ("MI250X-128GB", "MI250X-64GB"),
    ],
)
def test_other_spelling_of_a_gpu_means_the_most_similar(name: str, meant: str) -> None:
    assert similar_gpu(name).name == meant

"""GPUs and clusters: units, sources, and limits that no number may break."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from frog.core.errors import ConfigError
from frog.core.schema import parse_toml
from frog.plan.estimate.hardware import (
    clusters,
    default_cluster,
    find_cluster,
    gpu_named,
    gpus,
    similar_gpu,
)
from frog.plan.quantities import Price, parse_quantity


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


@pytest.mark.parametrize(
    ("cluster", "gibibytes", "tflops", "fp8_tflops", "gigabytes_per_s", "link_gigabytes_per_s"),
    [
        ("a100x8", 79.1, 312, 0, 2039, 300),
        ("h100x8", 79.1, 989.5, 1979, 3350, 450),
        ("h200x8", 139.7, 989.5, 1979, 4800, 450),
        ("h20x8", 95.0, 148, 296, 4000, 450),
        ("mi300xx8", 191.6, 1307.4, 2614.9, 5300, 448),
        ("mi325xx8", 255.6, 1307.4, 2614.9, 6000, 448),
    ],
)
def test_profiles_have_torch_s_memory_and_the_dense_figures_of_the_data_sheets(
    cluster: str,
    gibibytes: float,
    tflops: float,
    fp8_tflops: float,
    gigabytes_per_s: float,
    link_gigabytes_per_s: float,
) -> None:
    gpu = clusters()[cluster].gpu
    assert gpu.memory == pytest.approx(gibibytes * 2**30)
    assert (gpu.peak_bf16, gpu.peak_fp8) == pytest.approx((tflops * 1e12, fp8_tflops * 1e12))
    assert (gpu.memory_bandwidth, gpu.link_bandwidth) == pytest.approx(
        (gigabytes_per_s * 1e9, link_gigabytes_per_s * 1e9)
    )


def test_programs_can_use_nearly_all_gibibytes_of_a_gpu() -> None:
    """Vendors' GB are GiB. Error correction of L40S keeps a sixteenth."""
    tables = parse_toml(files("frog.plan.estimate").joinpath("gpus.toml").read_text())
    for name in set(tables) - {"CPU"}:
        vendor = int(name.removesuffix("-HBM2e-500W").split("-")[-1].removesuffix("GB"))
        assert tables[name]["memory"]["value"].endswith(" GiB"), name
        assert (0.92 if name == "L40S-48GB" else 0.96) < gpus()[name].memory / 2**30 / vendor < 1, name


def test_clusters_name_known_gpus_and_have_whole_nodes() -> None:
    for cluster in clusters().values():
        assert cluster.nvlink_domain % cluster.gpus_per_node == 0
        assert cluster.network_bandwidth_per_gpu <= cluster.gpu.link_bandwidth * 5
    assert default_cluster(gpu_named("H100-80GB")).node_bandwidth == 400e9


@pytest.mark.parametrize(
    ("text", "unit", "number"),
    [
        ("3200 Gbit/s", "B/s", 400e9),
        ("80 GB", "B", 80e9),
        ("79.1 GiB", "B", 79.1 * 2**30),
        ("81008 MiB", "B", 81008 * 2**20),
        ("312 TFLOP/s", "FLOP/s", 312e12),
        ("700 W", "W", 700.0),
    ],
)
def test_quantities_become_base_units(text: str, unit: str, number: float) -> None:
    assert parse_quantity(text, unit, "x") == pytest.approx(number)


@pytest.mark.parametrize("text", [400, "400", "400 Gb", "fast", "80 GB", "80 GiB", "80 GiB/s", "80 Gi", None])
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
        ("h100-pcie-80gb", "H100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100", "A100-80GB"),
    ],
)
def test_other_spelling_of_a_gpu_means_the_most_similar(name: str, meant: str) -> None:
    assert similar_gpu(name).name == meant


OWN = """
gpus_per_node = 4
nvlink_domain = 4
network = "400 Gbit/s"
price = "2.50 USD/h"
node_mtbf = { value = "5000 h", source = "our own log" }
gpu = "H100-80GB"
"""


def test_own_cluster_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    cluster = find_cluster(str(path))
    assert (cluster.gpu, cluster.node_bandwidth, cluster.node_power) == (gpu_named("H100-80GB"), 50e9, None)
    assert (cluster.price, cluster.node_mtbf_s) == (Price(2.5, "USD"), 5000 * 3600)


def test_cluster_file_may_describe_its_own_gpu(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    numbers = parse_toml(files("frog.plan.estimate").joinpath("gpus.toml").read_text())["H100-80GB"]
    own = "\n".join(f"{key} = {entry['value']!r}" for key, entry in numbers.items() if key != "power")
    path.write_text(OWN.replace('gpu = "H100-80GB"', f'[gpu]\npower = "600 W"\n{own}'))
    gpu = find_cluster(str(path)).gpu
    assert (gpu.name, gpu.power, gpu.peak_bf16) == ("own", 600, gpu_named("H100-80GB").peak_bf16)


def test_cluster_file_states_its_leaf_switches(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('nodes_per_leaf = 16\noversubscription = { value = 1.5, source = "our plan" }\n' + OWN)
    cluster = find_cluster(str(path))
    assert (cluster.nodes_per_leaf, cluster.oversubscription, cluster.gpus_per_leaf) == (16, 1.5, 64)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("oversubscription = 2", "nodes_per_leaf is missing: oversubscription needs it"),
        ("nodes_per_leaf = 16", "oversubscription is missing: nodes_per_leaf needs it"),
        ("nodes_per_leaf = 0\noversubscription = 2", "nodes_per_leaf=0: must be a whole number of at least 1"),
        ("nodes_per_leaf = 8\noversubscription = 0.5", "oversubscription=0.5: must be a number of at least 1"),
        ("nodes_per_leaf = 8\noversubscription = nan", "oversubscription=nan: must be a number of at least 1"),
        ("nodes_per_leaf = 8\noversubscription = true", "oversubscription=True: must be a number of at least 1"),
        ('nodes_per_leaf = 8\noversubscription = "2:1"', "oversubscription='2:1': must be a number of at least 1"),
        ("nodes_per_leaves = 8", "nodes_per_leaves: unknown key; did you mean nodes_per_leaf?"),
        ('network = "400"', "network='400': must be a number with a unit; write it like \"400 Gbit/s\""),
        ("network = 400", "network=400: must be a number with a unit"),
        ("gpus_per_node = 0", "gpus_per_node=0: must be a whole number of at least 1"),
        ('price = "2.50"', "price='2.50': must be a price per hour; write it like \"2.50 USD/h\""),
        ('node_mtbf = "5 d"', "node_mtbf='5 d': must be a number with a unit; write it like \"400 h\""),
        ('netwrk = "1 GB/s"', "netwrk: unknown key; did you mean network?"),
        ('gpu = "H100-80"', "gpu='H100-80': no profile of this GPU; did you mean H100-80GB?"),
        ('gpu = { memory = "80 W" }', "gpu.memory='80 W': must be a number with a unit"),
        ("gpu = { memry = 1 }", "gpu.memry: unknown key; did you mean gpu.memory?"),
        ("", "network is missing"),
    ],
)
def test_mistake_in_a_cluster_file_is_named(line: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    key = line.split(" =")[0] or "network"
    path.write_text("\n".join([row for row in OWN.splitlines() if not row.startswith(f"{key} =")] + [line]))
    with pytest.raises(ConfigError) as raised:
        find_cluster(str(path))
    assert problem in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(("name", "problem"), [("h100x9", "did you mean h100x8?"), ("no.toml", "no such cluster file")])
def test_unknown_cluster_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_cluster(name)
    assert problem in str(raised.value)

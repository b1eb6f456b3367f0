"""The peak rate of a GPU, by the names that torch.cuda.get_device_name prints."""

from __future__ import annotations

import pytest

from frog.train.gpu_peaks import peak_of

TFLOPS = {
    "NVIDIA H100 80GB HBM3": 989,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100 NVL": 835,
    "NVIDIA H200": 989,
    "NVIDIA H200 NVL": 835,
    "NVIDIA GH200 480GB": 989,
    "NVIDIA B200": 2250,
    "NVIDIA GB200": 2500,
    "NVIDIA B300 SXM6 AC": 2250,
    "NVIDIA GB300": 2500,
    "NVIDIA A100-SXM4-80GB": 312,
    "NVIDIA A100-PCIE-40GB": 312,
    "NVIDIA A100 80GB PCIe": 312,
    "A100-SXM4-40GB": 312,
    "NVIDIA A10": 125,
    "NVIDIA A10G": 70,
    "NVIDIA A30": 165,
    "NVIDIA A40": 149.7,
    "NVIDIA L4": 121,
    "NVIDIA L40": 181,
    "NVIDIA L40S": 362,
    "Tesla V100-SXM2-32GB": 125,
    "Tesla V100-PCIE-16GB": 112,
    "Tesla V100S-PCIE-32GB": 130,
    "Tesla T4": 65,
    "NVIDIA GeForce RTX 3090": 71,
    "NVIDIA GeForce RTX 4090": 165.2,
    "NVIDIA GeForce RTX 5090": 209.5,
    "NVIDIA RTX A6000": 154.8,
    "NVIDIA RTX 6000 Ada Generation": 364.2,
    "AMD Instinct MI210": 181,
    "AMD Instinct MI250X": 191.5,
    "AMD Instinct MI300A": 980.6,
    "AMD Instinct MI300X": 1307.4,
    "AMD Instinct MI325X": 1307.4,
    "AMD Instinct MI355X": 2516.6,
}

UNKNOWN = [
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a seventh of an H100
    "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
    "NVIDIA H20",  # not an H200
    "NVIDIA RTX A1000",  # neither an A10 nor an A100
    "NVIDIA RTX A4000",  # not an A40
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA GeForce RTX 4080 SUPER",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "Quadro RTX 6000",
    "GRID A100-10C",
    "AMD Radeon RX 7900 XTX",
]


@pytest.mark.parametrize("name", TFLOPS)
def test_peak_of_a_known_gpu_is_its_dense_16_bit_rate(name: str) -> None:
    assert peak_of(name, "fp16") == pytest.approx(TFLOPS[name] * 1e12)


@pytest.mark.parametrize("name", UNKNOWN)
def test_peak_of_a_similar_name_is_unknown(name: str) -> None:
    assert peak_of(name, "fp16") is None


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla T4"])
def test_gpu_without_bf16_units_has_no_bf16_peak(name: str) -> None:
    assert peak_of(name, "bf16") is None


def test_bf16_and_fp16_have_the_same_peak_elsewhere() -> None:
    assert peak_of("NVIDIA H100 PCIe", "bf16") == peak_of("NVIDIA H100 PCIe", "fp16") == 756e12

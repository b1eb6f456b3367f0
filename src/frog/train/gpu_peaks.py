"""Peak matrix rates of GPUs, by the name that torch.cuda.get_device_name prints."""

from __future__ import annotations

import re

_PEAKS: dict[str, float] = {
    # Data sheets print the rate with 2:4 sparsity next to a footnote; the dense rate is half of it.
    # https://www.nvidia.com/en-us/data-center/h100/: SXM 1,979, PCIe 1,513, NVL 1,671 with sparsity
    "h100": 989e12,
    "h100 pcie": 756e12,
    "h100 nvl": 835e12,
    # https://www.nvidia.com/en-us/data-center/h200/
    "h200": 989e12,
    "h200 nvl": 835e12,
    # https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/
    "gh200": 989e12,
    # https://www.nvidia.com/en-us/data-center/hgx/: 36 PFLOPS with sparsity for eight GPUs
    "b200": 2250e12,
    "b300": 2250e12,
    # https://www.nvidia.com/en-us/data-center/gb200-nvl72/ and gb300-nvl72/: 360 PFLOPS with sparsity for 72 GPUs
    "gb200": 2500e12,
    "gb300": 2500e12,
    # https://www.nvidia.com/en-us/data-center/a100/
    "a100": 312e12,
    "a100 pcie": 312e12,
    # https://www.nvidia.com/en-us/data-center/products/a10-gpu/, a30-gpu/ and /data-center/a40/
    "a10": 125e12,
    "a30": 165e12,
    "a40": 149.7e12,
    # NVIDIA A10G data sheet for AWS, 2022: 70 dense
    "a10g": 70e12,
    # https://www.nvidia.com/en-us/data-center/l4/, l40/ and l40s/
    "l4": 121e12,
    "l40": 181e12,
    "l40s": 362e12,
    # https://www.nvidia.com/en-us/data-center/v100/ and tesla-t4/
    "v100 sxm2": 125e12,
    "v100 pcie": 112e12,
    "v100s pcie": 130e12,
    "t4": 65e12,
    # Whitepapers of GA102, Ada and RTX Blackwell: "peak BF16 tensor TFLOPS with FP32 accumulate", the first of two
    "rtx 3090": 71e12,
    "rtx 4080": 97.5e12,
    "rtx 4090": 165.2e12,
    "rtx 5080": 112.6e12,
    "rtx 5090": 209.5e12,
    # Data sheets: A6000 309.7 in 16 bits with sparsity; 6000 Ada 1,457 in FP8 with sparsity, four times the 16-bit rate
    "rtx a6000": 154.8e12,
    "rtx 6000 ada": 364.2e12,
    # https://www.amd.com/en/products/accelerators/instinct.html; each half of an MI250 is a separate device
    "mi210": 181e12,
    "mi250x": 191.5e12,
    "mi250": 181e12,
    "mi300a": 980.6e12,
    "mi300x": 1307.4e12,
    "mi325x": 1307.4e12,
    "mi350x": 2306.9e12,
    "mi355x": 2516.6e12,
}
"""Dense 16-bit rate with float32 sums. Keys: the significant words of a device name. Units: operations per second."""

_DISTINCT = {"pcie", "nvl", "sxm2", "ti", "super", "d", "laptop", "max", "mig", "grid", "ada", "pro"}
"""Words for another, mostly slower, device, or a part of one: an entry matches only if it has them too."""

_WITHOUT_BF16 = {"v100", "v100s", "t4"}


def peak_of(name: str, precision: str) -> float | None:
    """Return the dense peak rate of the named device in `bf16` or `fp16`, or None for an unknown device."""
    words = set(re.split(r"[\s/-]+", name.lower()))
    if precision == "bf16" and words & _WITHOUT_BF16:
        return None
    return next((peak for key, peak in _PEAKS.items() if _fits(set(key.split()), words)), None)


def _fits(key: set[str], words: set[str]) -> bool:
    return key <= words and words & _DISTINCT <= key

"""What the device can do and what it has used, and how the allocator is set for training."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

_PEAK_FLOPS = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Dense 16-bit matrix rate by a part of the device's name. Source: NVIDIA's data sheets."""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MOST_MMAP_THRESHOLD = 32 << 20
"""What glibc takes at most on a 64-bit system."""


def keep_freed_memory() -> None:
    """Let glibc keep what a step frees for the next one, which otherwise faults the same pages in again.

    What it is worth: docs/decisions/0005-model-speed.md. Without glibc nothing is done.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such function; no such library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """What forward passes run in: nothing special in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """The device's highest rate at a 16-bit precision, or None where it is not known. Units: operations a second."""
    if device.type != "cuda" or precision == "fp32":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK_FLOPS.items() if part in name), None)


def peak_memory_bytes(device: torch.device) -> int:
    """The most memory held so far: by tensors on a GPU, by the whole process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

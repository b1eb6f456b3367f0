"""The precision of a forward pass on a device, the device's peak rate, and the memory in use."""

from __future__ import annotations

import resource
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from frog.train.gpu_peaks import peak_of


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context of forward passes; a null context for fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Return the device's peak rate at a 16-bit precision, or None if unknown. Units: operations per second."""
    if device.type != "cuda" or precision == "fp32":
        return None
    return peak_of(torch.cuda.get_device_name(device), precision)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory so far: of tensors on a GPU, of the whole process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024

"""Names of devices: every way to name a simulated GPU, translated to the CPU, and the current device."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

CPU = torch.device("cpu")


class Gpus:
    """The GPUs that this process sees, and its current one."""

    count = 0
    current = 0


def invalid_ordinal() -> Exception:
    """Return the error that CUDA raises for a device that does not exist."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    error: Exception = kind(
        f"CUDA error: invalid device ordinal\n(simulated GPUs: this process sees {Gpus.count}, numbered from 0)"
    )
    return error


def index_of(device: Any) -> int:
    """Return a GPU's index by any of its names; None is the current one. Raises CUDA's error for one too large."""
    if device is None:
        return Gpus.current
    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else int(device)
    if index is None:
        return Gpus.current
    if not 0 <= index < Gpus.count:
        raise invalid_ordinal()
    return int(index)


def is_gpu(device: Any) -> bool:
    """Return True if an argument names a GPU: cuda:1, torch.device("cuda"), or a number."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)


def real(device: Any) -> Any:
    """Return the CPU for any name of a GPU, after a check that the GPU exists; any other argument unchanged."""
    if not is_gpu(device):
        return device
    index_of(device)
    return CPU


class DeviceContext:
    """`torch.cuda.device`, `torch.accelerator.device_index`: another current device inside a block."""

    def __init__(self, device: Any) -> None:
        self.idx = Gpus.current if device is None else index_of(device)
        self.prev_idx = Gpus.current

    def __enter__(self) -> None:
        self.prev_idx = Gpus.current
        Gpus.current = self.idx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Gpus.current = self.prev_idx


def set_device(device: Any) -> None:
    """Make a GPU the current one of this process."""
    Gpus.current = index_of(device)


def exchange_device(index: int) -> int:
    """Make a GPU the current one, and return the previous one."""
    previous = Gpus.current
    if index >= 0:
        Gpus.current = index_of(index)
    return previous

"""nn.parallel.scatter, gather, replicate and nn.DataParallel: the copies between GPUs that torch makes in C++.

A build of torch for the CPU lacks these functions, and one for CUDA refuses tensors of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .placement import HOST, device_at
from .tensors import index_of

Tensor = Any
"""torch.Tensor, with the methods that simulated GPUs replace."""


def _moved(tensor: Tensor, index: int | None) -> Tensor:
    """Return a tensor on a GPU, by default the current one, or for -1 on the CPU; the same one if it is there."""
    return tensor.to(device_at(HOST if index == -1 else index_of(index)))


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None = None, dim: int = 0, streams: Any = None
) -> list[Tensor]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(list(chunk_sizes), dim)
    return [_moved(chunk, index) for chunk, index in zip(chunks, devices, strict=False)]


def _scatter_out(tensor: Tensor, out: Sequence[Tensor], dim: int = 0, streams: Any = None) -> list[Tensor]:
    chunks = tensor.split([part.size(dim) for part in out], dim)
    return [part.copy_(chunk) for part, chunk in zip(out, chunks, strict=True)]


def _gather(tensors: Sequence[Tensor], dim: int = 0, destination: int | None = None) -> Tensor:
    return torch.cat([_moved(tensor, destination) for tensor in tensors], dim)


def _gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int = 0) -> Tensor:
    parts = out.split([tensor.size(dim) for tensor in tensors], dim)
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor)
    return out


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [_moved(tensor, index) for index in devices]


def _broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    return [copy.copy_(tensor) for copy in out]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int = 0) -> list[list[Tensor]]:
    return [[_moved(tensor, index) for tensor in tensors] for index in devices]


def patch_data_parallel() -> None:
    """Give torch the functions; it adds gradients without NCCL."""
    for function in (
        *(_scatter, _scatter_out, _gather, _gather_out),
        *(_broadcast, _broadcast_out, _broadcast_coalesced),
    ):
        setattr(torch._C, function.__name__, function)

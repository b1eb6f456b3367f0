"""One rank's file of a checkpoint: the tensors that the rank writes, and their bytes in one staging buffer."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

_WRITE_BYTES = 8 << 20
_PAGE_BYTES = 4096
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Type names of the safetensors format."""


def partition(tensors: Mapping[str, Tensor], num_ranks: int) -> list[list[str]]:
    """Assign names to ranks: the largest first, each to the rank with the fewest bytes. Equal on every rank."""
    partitions: list[list[str]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for name in sorted(tensors, key=lambda name: (-tensors[name].nbytes, name)):
        lightest = loads.index(min(loads))
        partitions[lightest].append(name)
        loads[lightest] += tensors[name].nbytes
    return [sorted(names) for names in partitions]


class StagedFile:
    """A staging copy of tensors, laid out as a safetensors file, so that training can change the originals meanwhile.

    The constructor builds the header once; `stage` copies the tensors, and `write` streams the copy to disk. The
    library's `save_file` would copy the data again while holding the GIL.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        header: dict[str, dict[str, object]] = {}
        starts: dict[str, int] = {}
        end = 0
        for name in sorted(tensors, key=lambda name: (-tensors[name].element_size(), name)):  # wide first: aligned
            tensor, starts[name] = tensors[name], end
            header[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [end, end + tensor.nbytes],
            }
            end += tensor.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = struct.pack("<Q", len(text)) + text
        self._staging = torch.empty(end, dtype=torch.uint8)
        self._staging[::_PAGE_BYTES] = 0  # touch each page, so that the system allocates it now and not during a step
        self._views: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            flat = self._staging[starts[name] : starts[name] + tensor.nbytes]
            self._views[name] = flat.view(tensor.dtype).view(tensor.shape)

    @property
    def payload_bytes(self) -> int:
        return self._staging.numel()

    def stage(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the current values. The names, types and shapes must be those given to the constructor."""
        for name, view in self._views.items():
            view.copy_(tensors[name], non_blocking=tensors[name].is_cuda)
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def write(self, path: Path) -> str:
        """Write the staged values to `path` and sync it to disk; return the file's SHA-256."""
        digest = hashlib.sha256(self._header)
        memory = memoryview(self._staging.numpy().data)
        with open(path, "wb", buffering=0) as file:
            _write_all(file.fileno(), memoryview(self._header))
            for start in range(0, len(memory), _WRITE_BYTES):
                block = memory[start : start + _WRITE_BYTES]
                digest.update(block)
                _write_all(file.fileno(), block)
            os.fsync(file.fileno())
        return digest.hexdigest()


def _write_all(descriptor: int, block: memoryview) -> None:
    while block:
        block = block[os.write(descriptor, block) :]

"""Frames between the judge and a learner's processes: values as bytes, never as pickles.

Data from a learner's process is untrusted. It is decoded into plain values and tensors; none of it is ever executed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import torch

MOST_BYTES = 256 << 20
"""Size limit of a frame."""

_LENGTH = struct.Struct("<Q")
_TENSOR = 1
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class NotPlain(Exception):
    """A value that is neither plain data nor a tensor, or bytes that are not a valid frame."""


def pack(value: Any) -> bytes:
    """Encode a value as a frame: its length, then its bytes. Raises NotPlain."""
    try:
        body = msgspec.msgpack.encode(value, enc_hook=_plain)
    except (TypeError, OverflowError, ValueError, RecursionError, RuntimeError) as problem:
        raise NotPlain(str(problem)) from None
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the values that these bytes complete. Raises NotPlain."""
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MOST_BYTES:
                raise NotPlain(f"a frame of {length} bytes")
            if len(self._rest) < _LENGTH.size + length:
                return
            body = bytes(self._rest[_LENGTH.size : _LENGTH.size + length])
            del self._rest[: _LENGTH.size + length]
            yield unpack(body)


def unpack(body: bytes) -> Any:
    """Decode a frame without its length. Raises NotPlain."""
    try:
        return msgspec.msgpack.decode(body, ext_hook=_tensor)
    except (msgspec.DecodeError, TypeError, ValueError, KeyError, RuntimeError, RecursionError) as problem:
        raise NotPlain(str(problem)) from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return _of_tensor(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a plain value")


def _of_tensor(value: torch.Tensor) -> msgspec.msgpack.Ext:
    if value.layout != torch.strided or value.is_nested or value.is_meta or value.is_quantized:
        raise TypeError("a tensor that is sparse, nested, quantized or without data is not a plain value")
    flat = value.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode([str(value.dtype), list(value.shape), data]))


def _tensor(code: int, data: memoryview) -> torch.Tensor:
    if code != _TENSOR:
        raise ValueError(f"an extension {code}")
    dtype, shape, raw = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    if not raw:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(bytearray(raw), dtype=_DTYPES[dtype]).reshape(shape)

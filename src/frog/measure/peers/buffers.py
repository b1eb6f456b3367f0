"""The files that contain a peer's input and its result. The format is in docs/measure/collectives.md."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frog.core.files import open_plain

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"FROGBUF1"
"""The last character is the version."""
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4}
_HEAD = struct.Struct("<8sQQ")
"""Magic, number of the dtype, number of elements. The elements follow, little-endian."""


@dataclass(frozen=True)
class Unreadable:
    """An invalid result file: `no-result`, `not-a-buffer`, `half-written`, `wrong-dtype` or `wrong-count`."""

    id: str
    observed: str


def write_buffer(path: Path, values: Array) -> None:
    """Write an array as a buffer file, before a program starts that reads it."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    path.write_bytes(_HEAD.pack(MAGIC, DTYPES[values.dtype.name], values.size) + little.tobytes())


def read_buffer(path: Path, dtype: str, count: int) -> Array | Unreadable:
    """Read the array of a buffer file with this dtype and count. A file of any other size is not read."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_HEAD.size)
            if (wrong := _wrong_head(head, size, dtype, count)) is not None:
                return wrong
            return np.frombuffer(file.read(size - _HEAD.size), np.dtype(dtype).newbyteorder("<")).astype(dtype)
    except OSError as error:
        missing = "the result file is missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
        return Unreadable("no-result", missing)


def _wrong_head(head: bytes, size: int, dtype: str, count: int) -> Unreadable | None:
    if len(head) < _HEAD.size:
        return Unreadable("half-written", f"the result file has {size} bytes, less than the header's {_HEAD.size}")
    magic, number, stated = _HEAD.unpack(head)
    if magic != MAGIC:
        return Unreadable("not-a-buffer", f"the result file starts with {magic!r}, not {MAGIC!r}")
    if number != DTYPES[dtype]:
        return Unreadable("wrong-dtype", f"the result's dtype is {number}, not {DTYPES[dtype]} ({dtype})")
    if stated != count and size < _HEAD.size + stated * np.dtype(dtype).itemsize:
        follow = f"{size - _HEAD.size} bytes follow"
        return Unreadable("not-a-buffer", f"the result's header names {stated} elements of {dtype}, but {follow}")
    if stated != count:
        return Unreadable("wrong-count", f"the result has {stated} elements, not {count}")
    whole = _HEAD.size + count * np.dtype(dtype).itemsize
    if size != whole:
        return Unreadable("half-written", f"the result file has {size} bytes; header and {count} elements need {whole}")
    return None


def write_calls(path: Path, calls: Sequence[tuple[str, int, Path, Path]]) -> None:
    """Write the list of calls, one per line: operation, root, input file and result file, separated by tabs."""
    path.write_text("".join("\t".join(map(str, call)) + "\n" for call in calls))

"""Small files that readers never see half-written. A full disk or a read-only folder must not stop the program."""

from __future__ import annotations

import contextlib
import json
import os

MOST_BYTES = 4 << 20
"""Most bytes of one file."""


def write_json(folder: str, name: str, value: object) -> bool:
    """Replace a file atomically; return False if that is impossible."""
    try:
        return write_bytes(folder, name, json.dumps(value, allow_nan=False).encode("utf-8", "backslashreplace"))
    except (ValueError, RecursionError, MemoryError):
        return False


def write_bytes(folder: str, name: str, data: bytes) -> bool:
    """Replace a file atomically; return False if that is impossible or the data is too large.

    Creates the folder if necessary. Does not wait for the disk: after a power failure, the file may be empty.
    """
    if len(data) > MOST_BYTES:
        return False
    staging = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        try:
            _write(staging, data)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)
            _write(staging, data)
        os.replace(staging, os.path.join(folder, name))
    except OSError:
        _remove(staging)
        return False
    return True


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def read_json(path: str) -> object:
    """Read a small JSON file; None if it is missing or damaged."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read(1 << 16))
    except (OSError, ValueError, RecursionError):
        return None

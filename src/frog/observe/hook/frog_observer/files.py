"""Small files that readers never see half-written. A full disk or a read-only folder must not stop the program."""

from __future__ import annotations

import _thread
import contextlib
import json
import os

MOST_BYTES = 4 << 20
"""Most bytes of one file."""

_MOST_READ_BYTES = 1 << 16


def write_json(folder: str, name: str, value: object) -> None:
    """Replace a file atomically, if possible."""
    write_bytes(folder, name, encode(value))


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def write_bytes(folder: str, name: str, data: bytes) -> None:
    """Replace a file atomically, if possible. Does not create a folder: the launcher may have removed the run's.

    Does not wait for the disk: after a power failure, the file may be empty.
    """
    staging = os.path.join(folder, f".{name}.{os.getpid()}.{_thread.get_ident()}.tmp")
    try:
        _write(staging, data)
        os.replace(staging, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(staging)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def read_json(path: str) -> object:
    """Read a small JSON file; None if it is missing or damaged."""
    try:
        with open(path, "rb") as file:
            value: object = json.loads(file.read(_MOST_READ_BYTES))
            return value
    except (OSError, ValueError, RecursionError):
        return None

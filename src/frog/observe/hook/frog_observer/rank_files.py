"""Small files that other processes read at any moment. A full disk or a read-only folder must not stop the program."""

from __future__ import annotations

import _thread
import contextlib
import json
import os

MOST_BYTES = 4 << 20
"""Most bytes of one file."""

_PAGE_BYTES = 4096
_MOST_READ_BYTES = 1 << 16
_MOST_READS = 5


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


def rewrite(folder: str, name: str, data: bytes) -> None:
    """Replace a small file by one write of a fixed length, if possible.

    A reader may rarely see a part of the old and a part of the new text, and has to read again, as `read_json` does. In
    return, a file system that all ranks share has no new file and no renaming to do. A text that is larger than a page
    replaces the file as `write_bytes` does.
    """
    if len(data) > _PAGE_BYTES:
        write_bytes(folder, name, data)
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, data.ljust(_PAGE_BYTES))
            if os.fstat(descriptor).st_size > _PAGE_BYTES:
                os.ftruncate(descriptor, _PAGE_BYTES)
        finally:
            os.close(descriptor)


def _write(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def read_request(path: str) -> tuple[int, str]:
    """Return the number and the reason of the last request to all ranks; 0 if there is none."""
    request = read_json(path)
    if not isinstance(request, dict) or not isinstance(request.get("number"), int):
        return 0, ""
    return request["number"], str(request.get("reason", ""))[:200]


def read_json(path: str) -> object:
    """Read a small JSON file; None if it is missing or damaged."""
    for _ in range(_MOST_READS):
        try:
            with open(path, "rb") as file:
                value: object = json.loads(file.read(_MOST_READ_BYTES))
                return value
        except (ValueError, RecursionError):  # another process may be writing at this moment
            continue
        except OSError:
            return None
    return None

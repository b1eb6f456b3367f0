"""Reading a log that a user names, of any size, in bounded time and memory."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO

from frog.core.errors import UsageError

HEAD, TAIL, _CHUNK = 8 << 20, 24 << 20, 1 << 20
"""Bytes that are read at the beginning and at the end of a log; what is between is skipped."""
STDIN = "-"


def read_named(name: str) -> bytes:
    """Return the beginning and the end of a file that the user named; `-` is standard input.

    Raises:  UsageError if it cannot be read.
    """
    if name == STDIN:
        return _ends(sys.stdin.buffer)
    try:
        with Path(name).open("rb") as file:
            return _skipped(file) if file.seekable() else _ends(file)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(
            f"{name}: cannot be read: {what}", "name a log file, a folder, or `-` for standard input"
        ) from error


def _skipped(file: BinaryIO) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size <= HEAD + TAIL:
        return file.read(HEAD + TAIL)
    head = file.read(HEAD)
    file.seek(size - TAIL)
    return _whole_lines(head, file.read(TAIL))


def _ends(stream: BinaryIO) -> bytes:
    """Read a stream to its end, and keep its beginning and its end."""
    head = stream.read(HEAD)
    tail: deque[bytes] = deque(maxlen=TAIL // _CHUNK)
    num_chunks = 0
    while chunk := stream.read(_CHUNK):
        tail.append(chunk)
        num_chunks += 1
    kept = b"".join(tail)
    return head + kept if num_chunks == len(tail) else _whole_lines(head, kept)


def _whole_lines(head: bytes, tail: bytes) -> bytes:
    """Join two parts of a log without the lines that the gap between them has cut."""
    return head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]

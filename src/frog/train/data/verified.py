"""Verifies the hash of every file of a prepared set once, before training or scoring.

`data/.<name>.verified.json`, next to the set, lists the verified files with their sizes and times. A copy of a file, or
a modified file, has another change time and is verified again. Opening a verified set only checks its files' metadata,
independent of their size.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from frog.core.errors import DataError
from frog.core.schema import Digest, FileName, Natural, Typed, read_typed, write_typed
from frog.core.units import format_bytes
from frog.train.data.manifest import check_file
from frog.train.data.prepared import PreparedData

_SAID_BYTES = 1 << 30
"""From this size on, verification takes seconds and prints a message."""


class FileStamp(Typed, frozen=True):
    """Metadata of a file when its content had this hash."""

    sha256: Digest
    size_bytes: Natural
    modified_ns: Natural
    changed_ns: Natural


class Verified(Typed, frozen=True):
    """data/.<name>.verified.json"""

    KIND: ClassVar[str] = "the list of a data set's verified files"
    FORMAT: ClassVar[int | None] = 1

    files: dict[FileName, FileStamp]


def verify_once(data: PreparedData) -> PreparedData:
    """Verify the hashes of all files of a set that are not verified yet.

    Raises:  DataError that names the first altered file.
    """
    known = _read(data)
    stamps = _stamps(data)
    unknown = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    num_bytes = sum(stamps[name].size_bytes for name in unknown)
    if num_bytes >= _SAID_BYTES:
        print(f"{data.path}: first use: verifying the hashes of {format_bytes(num_bytes)}", flush=True)
    for name in unknown:
        check_file(data.path / name, data.manifest.files[name], verify=True)
        known[name] = stamps[name]
        _write(data, known)  # after each file, so that an interrupted verification resumes there
    return data


def note_verified(data: PreparedData) -> PreparedData:
    """Record a new set as verified: its files were hashed while they were written."""
    _write(data, _stamps(data))
    return data


def _stamps(data: PreparedData) -> dict[str, FileStamp]:
    stamps = {}
    for name, file in data.manifest.files.items():
        about = (data.path / name).stat()
        times = {"modified_ns": about.st_mtime_ns, "changed_ns": about.st_ctime_ns}
        stamps[name] = FileStamp(sha256=file.sha256, size_bytes=about.st_size, **times)
    return stamps


def _path(data: PreparedData) -> Path:
    return data.path.with_name(f".{data.path.name}.verified.json")


def _read(data: PreparedData) -> dict[str, FileStamp]:
    """Read the list of verified files; empty if it is missing or damaged, since it can be recreated."""
    with contextlib.suppress(FileNotFoundError, DataError):
        return dict(read_typed(_path(data), Verified, error=DataError).files)
    return {}


def _write(data: PreparedData, files: dict[str, FileStamp]) -> None:
    with contextlib.suppress(OSError):  # in a read-only folder, the set is verified at every start
        write_typed(_path(data), Verified(files=files))

"""Every file of a prepared set is held against its hash once, before anything is trained on it or scored.

What was verified stands in `data/.<name>.verified.json`, beside the set, with the size and the times of each file: a
copy, on another machine or on this one, has a time of change of its own, and so has a file that was written to. Those
are read again. Opening a set that was verified costs a look at its files, however large it is.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import ClassVar

from frog.core.errors import DataError
from frog.core.schema import Digest, FileName, Natural, Typed, read_typed, write_typed
from frog.core.units import format_bytes
from frog.data.manifest import check_file
from frog.data.prepared import PreparedData

_SAID_BYTES = 1 << 30
"""From here on it takes seconds, and is said."""


class FileStamp(Typed, frozen=True):
    """A file as it was when its bytes had this hash."""

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
    """Hold those files of a set against their hashes that are not known to have them.

    Raises:  DataError naming the first that was altered.
    """
    known = _read(data)
    stamps = _stamps(data)
    unknown = [name for name, stamp in stamps.items() if known.get(name) != stamp]
    num_bytes = sum(stamps[name].size_bytes for name in unknown)
    if num_bytes >= _SAID_BYTES:
        print(f"{data.path}: new here: checking the hashes of {format_bytes(num_bytes)}", flush=True)
    for name in unknown:
        check_file(data.path / name, data.manifest.files[name], verify=True)
        known[name] = stamps[name]
        _write(data, known)  # after each: what is broken off goes on from there
    return data


def note_verified(data: PreparedData) -> PreparedData:
    """Note that the files of a set are what their hashes say: they were hashed while they were written."""
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
    """What is known; nothing if the list is absent or damaged, since it can be made again."""
    with contextlib.suppress(FileNotFoundError, DataError):
        return dict(read_typed(_path(data), Verified, error=DataError).files)
    return {}


def _write(data: PreparedData, files: dict[str, FileStamp]) -> None:
    with contextlib.suppress(OSError):  # where nothing can be written, a set is verified at every start
        write_typed(_path(data), Verified(files=files))

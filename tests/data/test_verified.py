"""A set is held against its hashes once: before the first run on it, after a copy, after any write to it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from frog.core import files
from frog.core.errors import DataError
from frog.data import PreparedData, ensure_prepared, manifest, open_prepared, verified


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are hashed, as they are."""
    names: list[str] = []

    def sha256_file(path: Path) -> str:
        names.append(path.name)
        return files.sha256_file(path)

    monkeypatch.setattr(manifest, "sha256_file", sha256_file)
    return names


SMALL = {"tokenizer.json", "token_bytes.npy"}
"""Hashed whenever a set is opened."""


def start(data: PreparedData, hashed: list[str]) -> set[str]:
    """Open a set as a run does; the large files that were hashed for that."""
    hashed.clear()
    ensure_prepared(data.path.name, data.path.parent)
    return set(hashed) - SMALL


def large(data: PreparedData) -> set[str]:
    return data.manifest.files.keys() - SMALL


def test_set_prepared_here_is_already_verified(copy: PreparedData, hashed: list[str]) -> None:
    assert start(copy, hashed) == set()


def test_copied_set_is_verified_once(copy: PreparedData, hashed: list[str], tmp_path: Path) -> None:
    """Also one that took the list along, with all times that a copy can keep."""
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    moved = open_prepared("copy", tmp_path / "elsewhere")
    assert [start(moved, hashed) for _ in range(2)] == [large(copy), set()]


def test_flipped_bit_in_any_file_is_detected_before_training(copy: PreparedData, hashed: list[str]) -> None:
    """All of them stay in the vocabulary, and the size as it was: nothing else tells."""
    path = copy.path / "train_00000.bin"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    (np.fromfile(path, "<u2") ^ 1).tofile(path)
    os.utime(path, ns=times)
    for _ in range(2):  # that it was refused once makes it no better
        with pytest.raises(DataError, match=r"train_00000\.bin: altered: sha256 .*\n  try: prepare the set again"):
            ensure_prepared("copy", copy.path.parent)


def test_interrupted_verification_resumes(
    copy: PreparedData, hashed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified._path(copy).unlink()
    write, written = verified._write, 0

    def broken(*args: object) -> None:
        nonlocal written
        written += 1
        if written > 2:
            raise KeyboardInterrupt
        write(*args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(verified, "_write", broken)
        with pytest.raises(KeyboardInterrupt):
            ensure_prepared("copy", copy.path.parent)
    known = json.loads(verified._path(copy).read_text())["files"]
    assert len(known) == 2
    assert start(copy, hashed) == large(copy) - known.keys()


def test_damaged_verification_list_is_recreated(copy: PreparedData, hashed: list[str]) -> None:
    path = verified._path(copy)
    good = path.read_bytes()
    for content in (good[:50], b"[]", b'{"format": 2}', b'{"format": 1, "files": {"x": 1}}', b"[" * 100_000):
        path.write_bytes(content)
        assert [start(copy, hashed) for _ in range(2)] == [large(copy), set()]


def test_set_in_a_read_only_folder_is_verified_each_time(copy: PreparedData, hashed: list[str]) -> None:
    verified._path(copy).unlink()
    verified._path(copy).mkdir()
    (verified._path(copy) / "file").touch()
    assert [start(copy, hashed) for _ in range(2)] == [large(copy), large(copy)]

"""A set's hashes are verified once: before the first run, after a copy, after any write to it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from frog.core import files
from frog.core.errors import DataError
from frog.train.data import PreparedData, ensure_prepared, manifest, open_prepared, verified


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the names of hashed files."""
    names: list[str] = []

    def sha256_file(path: Path) -> str:
        names.append(path.name)
        return files.sha256_file(path)

    monkeypatch.setattr(manifest, "sha256_file", sha256_file)
    return names


SMALL = {"tokenizer.json", "token_bytes.npy"}
"""Files that are hashed whenever a set is opened."""


def start(data: PreparedData, hashed: list[str]) -> set[str]:
    """Open a set as a run does; return the large files that were hashed."""
    hashed.clear()
    ensure_prepared(data.path.name, data.path.parent)
    return set(hashed) - SMALL


def large(data: PreparedData) -> set[str]:
    return data.manifest.files.keys() - SMALL


def test_set_prepared_here_is_already_verified(copy: PreparedData, hashed: list[str]) -> None:
    assert start(copy, hashed) == set()


def test_copied_set_is_verified_once(copy: PreparedData, hashed: list[str], tmp_path: Path) -> None:
    """This includes a copy of the verification list that preserves all times that a copy can preserve."""
    shutil.copytree(tmp_path, tmp_path / "elsewhere")
    moved = open_prepared("copy", tmp_path / "elsewhere")
    assert [start(moved, hashed) for _ in range(2)] == [large(copy), set()]


def test_flipped_bit_in_any_file_is_detected_before_training(copy: PreparedData, hashed: list[str]) -> None:
    """All tokens stay in the vocabulary and the size is unchanged: only the hash differs."""
    path = copy.path / "train_00000.bin"
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    (np.fromfile(path, "<u2") ^ 1).tofile(path)
    os.utime(path, ns=times)
    for _ in range(2):  # the second attempt is rejected too
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

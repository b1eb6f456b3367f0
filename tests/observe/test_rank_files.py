"""The observer's files: readable at every moment, within their limits, silent if the disk is full."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from frog.observe.hook.frog_observer import rank_files


def test_reader_of_a_rewritten_file_reads_it_whole(tmp_path: Path) -> None:
    path, over = tmp_path / "status.json", threading.Event()
    rank_files.rewrite(str(tmp_path), path.name, b"{}")

    def rewrite() -> None:
        for number in range(3000):
            rank_files.rewrite(
                str(tmp_path), path.name, rank_files.encode({"text": "x" * (number % 7 * 500), "n": number})
            )
        over.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not over.is_set():
        assert isinstance(rank_files.read_json(str(path)), dict)
    writer.join()
    assert json.loads(path.read_bytes())["n"] == 2999


def test_file_that_was_larger_than_a_page_shrinks(tmp_path: Path) -> None:
    rank_files.rewrite(str(tmp_path), "a.json", rank_files.encode("x" * 10_000))
    assert (tmp_path / "a.json").stat().st_size == 10_002
    rank_files.rewrite(str(tmp_path), "a.json", b"7")
    assert json.loads((tmp_path / "a.json").read_bytes()) == 7
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


@pytest.mark.parametrize("write", [rank_files.write_bytes, rank_files.rewrite])
def test_missing_folder_is_not_created(write: object, tmp_path: Path) -> None:
    write(str(tmp_path / "gone"), "a.json", b"7")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff"], ids=["empty", "half", "deep", "not text"])
def test_damaged_file_is_read_as_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert rank_files.read_json(str(tmp_path / "a.json")) is None

"""Opening a set: complete sets open, damaged ones raise errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness import LIMIT_S
from mutations import held_to_its_schema

import frog.train.data
from frog.core.errors import DataError
from frog.train.data import PreparedData, Windows, list_prepared, load_tokenizer, open_prepared
from frog.train.data.prepared import scan_prepared


def refusal(data: PreparedData, verify: bool = False) -> str:
    with pytest.raises(DataError) as caught:
        open_prepared(data.name, data.path.parent, verify)
    return str(caught.value)


def test_complete_set_opens(data: PreparedData) -> None:
    opened = open_prepared(data.name, data.path.parent, verify=True)
    assert (opened.name, opened.vocab_size, opened.data_sha256) == (data.name, data.vocab_size, data.data_sha256)
    with pytest.raises(DataError, match="no split 'test'; available: train and heldout"):
        opened.split("test")


def test_documents_are_found_across_shards(data: PreparedData) -> None:
    split = data.split("train")
    assert len(split.shards) > 1
    documents = [split.document(index) for index in range(split.num_documents)]
    np.testing.assert_array_equal(np.concatenate(documents), np.concatenate(split.shards))
    np.testing.assert_array_equal(split.document_lengths(), [len(document) for document in documents])
    for index in (-1, split.num_documents):
        with pytest.raises(IndexError, match=f"document {index} of train"):
            split.document(index)


def test_missing_set_error_names_the_commands(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no prepared data set 'x'\n.*`frog data list`.*`frog data prepare"):
        open_prepared("x", tmp_path)
    assert list_prepared(tmp_path / "nowhere") == []


def test_missing_shard_raises_data_error(copy: PreparedData) -> None:
    (copy.path / "heldout_00000.bin").unlink()
    assert f"{copy.path / 'heldout_00000.bin'}: missing, but the manifest names it" in refusal(copy)


def test_pipe_or_folder_in_place_of_a_file_raises_data_error(copy: PreparedData) -> None:
    """Replaces each file of a set in turn, whether it is mapped, loaded or parsed."""
    for path in sorted(copy.path.iterdir()):
        good = path.read_bytes()
        for put in (os.mkfifo, os.mkdir):
            path.unlink()
            put(path)
            assert path.name in refusal(copy) or path.name == "manifest.json"
            path.rmdir() if path.is_dir() else path.unlink()
            path.write_bytes(good)
    open_prepared(copy.name, copy.path.parent, verify=True)


def test_truncated_shard_raises_data_error(copy: PreparedData) -> None:
    shard = copy.path / "train_00000.bin"
    size_bytes = shard.stat().st_size
    shard.write_bytes(shard.read_bytes()[:-2])
    assert f"{shard}: {size_bytes - 2} bytes, but the manifest has {size_bytes}" in refusal(copy)


@pytest.mark.parametrize("name", ["train_00000.bin", "train_00000.offsets.bin", "tokenizer.json", "token_bytes.npy"])
def test_verify_finds_one_flipped_bit(copy: PreparedData, name: str) -> None:
    content = bytearray((copy.path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy.path / name).write_bytes(content)
    if name.endswith(".bin"):  # the other files are small, and checked whenever a set is opened
        open_prepared(copy.name, copy.path.parent)
    assert f"{copy.path / name}: altered: sha256" in refusal(copy, verify=True)


def test_damaged_data_manifest_raises_data_error(copy: PreparedData) -> None:
    path = copy.path / "manifest.json"
    good = path.read_text()
    path.write_text(good[: len(good) // 2])
    assert f"{path}: not valid JSON" in refusal(copy)
    path.write_text("[]")
    assert f"{path}: found a list, expected object" in refusal(copy)
    path.write_text(json.dumps({**json.loads(good), "format": 3}))
    assert "found 3, expected 2: the manifest of a prepared data set of a newer Frog" in refusal(copy)
    path.write_text(json.dumps({key: value for key, value in json.loads(good).items() if key != "splits"}))
    assert "object missing required field splits" in refusal(copy)
    path.write_text(good.replace(copy.manifest.files["tokenizer.json"].sha256, "0" * 64))
    assert "its hashes do not match data_sha256" in refusal(copy)


def test_data_manifest_with_any_wrong_key_is_rejected(copy: PreparedData) -> None:
    def use() -> None:
        data = open_prepared(copy.name, copy.path.parent)
        assert data.token_bytes.shape == (data.vocab_size,)
        for name in ("train", "heldout"):
            assert data.split(name).document_lengths().sum() == data.split(name).num_tokens

    held_to_its_schema(copy.path / "manifest.json", use, names=str(copy.path))


@pytest.mark.parametrize("lengths", [np.zeros(3, np.int64), np.zeros(300), np.zeros((300, 2), np.int64)])
def test_token_bytes_of_the_wrong_shape_raise_data_error(copy: PreparedData, lengths: np.ndarray) -> None:
    np.save(copy.path / "token_bytes.npy", lengths)
    with pytest.raises(DataError, match=r"token_bytes\.npy: found .* expected \(\d+,\) integers"):
        _ = PreparedData(copy.path, copy.manifest).token_bytes


def test_token_outside_the_vocabulary_raises_data_error(copy: PreparedData) -> None:
    shard = copy.path / "train_00000.bin"
    content = np.fromfile(shard, "<u2")
    content[5] = 60_000
    content.tofile(shard)
    windows = Windows(open_prepared(copy.name, copy.path.parent).split("train"), 8)
    words = r"train_00000\.bin: token 5: found 60000, expected less than \d+, the size of its vocabulary"
    with pytest.raises(DataError, match=words):
        windows.gather(np.arange(len(windows))[::-1])


def test_list_has_valid_sets_and_scan_has_errors(copy: PreparedData, tmp_path: Path) -> None:
    (tmp_path / ".half.partial-1").mkdir()
    (tmp_path / ".half.partial-1" / "manifest.json").write_text((copy.path / "manifest.json").read_text())
    (tmp_path / "harmed").mkdir()
    (tmp_path / "harmed" / "manifest.json").write_text((copy.path / "manifest.json").read_text())
    assert [data.name for data in list_prepared(tmp_path)] == ["copy"]
    found = scan_prepared(tmp_path)
    assert list(found) == ["copy", "harmed"]
    assert "missing" in str(found["harmed"])


def test_invalid_tokenizer_file_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="not a tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_exported_names_exist_and_load_lazily() -> None:
    assert sorted(frog.train.data.__all__) == sorted(frog.train.data._MODULE_OF)
    assert all(hasattr(frog.train.data, name) for name in frog.train.data.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = frog.train.data.nothing
    heavy = "('torch', 'tokenizers', 'numpy')"
    code = f"import sys, frog.train.data.data_commands; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT_S).returncode == 0

"""Opens, checks and lists prepared sets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from frog.core.errors import DataError, FrogError
from frog.core.files import folders_with, put_aside
from frog.train.data.folder import DATA_ROOT, SetFolder, claim, set_folder
from frog.train.data.manifest import SPLITS, DataManifest, Shard, check_file, prepare_again, read_data_manifest
from frog.train.data.shards import OFFSET_DTYPE


class Split:
    """One split of a set, memory-mapped: data is read on first use."""

    def __init__(self, path: Path, name: str, shards: list[Shard], dtype: np.dtype[Any], vocab_size: int) -> None:
        self.path, self.name, self.vocab_size = path, name, vocab_size
        self.files = [path / shard.tokens for shard in shards]
        self.shards = [_mapped(file, dtype) for file in self.files]
        self._offsets = [_mapped(path / shard.offsets, OFFSET_DTYPE) for shard in shards]
        self._document_ends = np.cumsum([len(offsets) for offsets in self._offsets])
        self.num_tokens = sum(len(shard) for shard in self.shards)
        self.num_documents = sum(len(offsets) for offsets in self._offsets)

    def document(self, index: int) -> np.ndarray:
        """Return the tokens of one document with its end-of-document token. Raises IndexError for other indices."""
        shard, place = self._locate(index)
        offsets, tokens = self._offsets[shard], self.shards[shard]
        end = offsets[place + 1] if place + 1 < len(offsets) else len(tokens)
        return tokens[offsets[place] : end]

    def document_lengths(self) -> np.ndarray:
        """Return the number of tokens of each document.

        Shapes:  -> (num_documents,) int64
        """
        pairs = zip(self._offsets, self.shards, strict=True)
        return np.concatenate([np.diff(offsets, append=len(tokens)) for offsets, tokens in pairs])

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.name}, which has {self.num_documents} documents")
        shard = int(np.searchsorted(self._document_ends, index, side="right"))
        return shard, index - int(self._document_ends[shard] - len(self._offsets[shard]))


@dataclass(frozen=True)
class PreparedData:
    """A complete prepared set, from `open_prepared`."""

    path: Path
    manifest: DataManifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def vocab_size(self) -> int:
        return self.manifest.vocab_size

    @property
    def data_sha256(self) -> str:
        """Hash of everything that training and scoring use: shards, tokenizer, bytes per token."""
        return self.manifest.data_sha256

    @property
    def tokenizer_json(self) -> Path:
        return SetFolder(self.path).tokenizer_json

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Bytes of text of each token, for scores in bits per byte.

        Shapes:  (V,) int64
        """
        path = SetFolder(self.path).token_bytes
        try:
            lengths: np.ndarray = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: cannot be read: {error}", prepare_again(self.name)) from None
        if lengths.shape != (self.vocab_size,) or lengths.dtype.kind not in "iu":
            actual = f"{lengths.dtype} of shape {lengths.shape}"
            raise DataError(f"{path}: found {actual}, expected ({self.vocab_size},) integers", prepare_again(self.name))
        return lengths.astype(np.int64)

    def split(self, name: str) -> Split:
        """Return the split `train` or `heldout`."""
        if name not in SPLITS:
            raise DataError(f"{self.path}: no split {name!r}; available: {' and '.join(SPLITS)}")
        return Split(self.path, name, self.manifest.splits[name].shards, np.dtype(self.manifest.dtype), self.vocab_size)


def open_prepared(name: str, root: Path = DATA_ROOT, verify: bool = False) -> PreparedData:
    """Open a prepared set. Checks its file sizes and the tokenizer's hash, and with `verify` all hashes.

    Raises:  DataError if the set does not exist, or if one of its files is missing, truncated or altered.
    """
    folder = set_folder(name, root)
    if put_aside(folder.path).is_dir() and not folder.path.exists():  # a process was killed while replacing it
        with claim(name, root, wait=True):
            pass
    if not folder.manifest_json.is_file():
        raise DataError(
            f"{folder.path}: no prepared data set {name!r}",
            f"`frog data list` shows all sets; `frog data prepare --name {name} --corpus PATH` creates this one",
        )
    manifest = read_data_manifest(folder.manifest_json)
    small = {folder.tokenizer_json.name, folder.token_bytes.name}
    if absent := small - manifest.files.keys():
        raise DataError(f"{folder.manifest_json}: $.files: {', '.join(sorted(absent))} is missing", prepare_again(name))
    for file_name, expected in manifest.files.items():
        check_file(folder.path / file_name, expected, verify=verify or file_name in small)
    return PreparedData(folder.path, manifest)


def scan_prepared(root: Path = DATA_ROOT) -> dict[str, PreparedData | FrogError]:
    """Return every set under `root` by name, or the error if it cannot be opened."""
    prepared: dict[str, PreparedData | FrogError] = {}
    for folder in folders_with(root, "manifest.json"):
        name = folder.name
        if name.startswith("."):
            continue
        try:
            prepared[name] = open_prepared(name, root)
        except DataError as error:
            prepared[name] = error
    return prepared


def list_prepared(root: Path = DATA_ROOT) -> list[PreparedData]:
    """Return every valid set under `root`, ordered by name."""
    return [entry for entry in scan_prepared(root).values() if isinstance(entry, PreparedData)]


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """Map a file as an array. Returns a plain view, because indexing np.memmap is slower."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))

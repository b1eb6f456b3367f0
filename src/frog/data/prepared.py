"""Prepared sets: opened, checked, listed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from frog.core.errors import DataError, FrogError
from frog.core.files import sha256_file
from frog.data.folder import DATA_ROOT, SetFolder, set_folder
from frog.data.shards import OFFSET_DTYPE, Shard

FORMAT = "frog-data"
FORMAT_VERSION = 1
SPLITS = ("train", "heldout")

_REQUIRED = {"name", "source", "created", "vocab_size", "dtype", "splits", "files", "data_sha256"}


def content_hash(files: Mapping[str, Mapping[str, Any]]) -> str:
    """One hash over the names and hashes of all files of a set: equal if and only if the data are."""
    lines = "".join(f"{name} {files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


class Split:
    """One side of a set, memory-mapped: nothing is read before it is used."""

    def __init__(self, path: Path, name: str, shards: list[Shard], dtype: np.dtype[Any]) -> None:
        self.path, self.name = path, name
        self.shards = [_mapped(path / shard.tokens, dtype) for shard in shards]
        self._offsets = [_mapped(path / shard.offsets, OFFSET_DTYPE) for shard in shards]
        self._document_ends = np.cumsum([len(offsets) for offsets in self._offsets])
        self.num_tokens = sum(len(shard) for shard in self.shards)
        self.num_documents = sum(len(offsets) for offsets in self._offsets)

    def document(self, index: int) -> np.ndarray:
        """The tokens of one document, the end-of-document token last. Raises IndexError if there is no such."""
        shard, place = self._locate(index)
        offsets, tokens = self._offsets[shard], self.shards[shard]
        end = offsets[place + 1] if place + 1 < len(offsets) else len(tokens)
        return tokens[offsets[place] : end]

    def document_lengths(self) -> np.ndarray:
        """Tokens of each document.

        Shapes:  -> (num_documents,) int64
        """
        pairs = zip(self._offsets, self.shards, strict=True)
        return np.concatenate([np.diff(offsets, append=len(tokens)) for offsets, tokens in pairs])

    def _locate(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} of {self.name}, which has {self.num_documents}")
        shard = int(np.searchsorted(self._document_ends, index, side="right"))
        return shard, index - int(self._document_ends[shard] - len(self._offsets[shard]))


@dataclass(frozen=True)
class PreparedData:
    """A whole prepared set: `open_prepared` makes it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def vocab_size(self) -> int:
        return int(self.manifest["vocab_size"])

    @property
    def data_sha256(self) -> str:
        """The hash of all that trains and scores: shards, tokenizer, bytes of tokens."""
        return str(self.manifest["data_sha256"])

    @property
    def tokenizer_json(self) -> Path:
        return SetFolder(self.path).tokenizer_json

    @cached_property
    def token_bytes(self) -> np.ndarray:
        """Bytes of text that each token stands for, to score in bits per byte.

        Shapes:  (V,) int64
        """
        lengths: np.ndarray = np.load(SetFolder(self.path).token_bytes, allow_pickle=False)
        return lengths.astype(np.int64)

    def split(self, name: str) -> Split:
        """The `train` or the `heldout` side."""
        if name not in SPLITS:
            raise DataError(f"{self.path}: no split {name!r}; there are {' and '.join(SPLITS)}")
        shards = [Shard(**shard) for shard in self.manifest["splits"][name]["shards"]]
        return Split(self.path, name, shards, np.dtype(self.manifest["dtype"]))


def open_prepared(name: str, root: Path = DATA_ROOT, verify: bool = False) -> PreparedData:
    """Open a prepared set after a look at its files' sizes; with `verify` their hashes too.

    Raises:  DataError if there is no such set, or if a file of it is missing, truncated or altered.
    """
    folder = set_folder(name, root)
    if not folder.manifest_json.is_file():
        raise DataError(
            f"{folder.path}: no prepared data set {name!r} there",
            f"`frog data list` shows those there are; `frog data prepare --name {name} --corpus PATH` makes it",
        )
    manifest = _read_manifest(folder)
    _check_files(folder.path, name, manifest, verify)
    return PreparedData(folder.path, manifest)


def scan_prepared(root: Path = DATA_ROOT) -> dict[str, PreparedData | FrogError]:
    """Every set under `root` by name; for one that cannot be opened, why not."""
    found: dict[str, PreparedData | FrogError] = {}
    for manifest_json in sorted(root.glob("[!.]*/manifest.json")):
        name = manifest_json.parent.name
        try:
            found[name] = open_prepared(name, root)
        except DataError as error:
            found[name] = error
    return found


def list_prepared(root: Path = DATA_ROOT) -> list[PreparedData]:
    """Every set under `root` that can be opened, by name."""
    return [entry for entry in scan_prepared(root).values() if isinstance(entry, PreparedData)]


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """The file as an array, read as it is touched. A plain view, because indexing np.memmap itself is slower."""
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def _read_manifest(folder: SetFolder) -> dict[str, Any]:
    path = folder.manifest_json
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable manifest: {error}", _again(folder.path.name)) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path}: not the manifest of a prepared set", _again(folder.path.name))
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path}: format version {manifest.get('format_version')}, this Frog reads {FORMAT_VERSION}",
            _again(folder.path.name),
        )
    if missing := _REQUIRED - manifest.keys():
        raise DataError(f"{path}: incomplete: no {', '.join(sorted(missing))}", _again(folder.path.name))
    return manifest


def _check_files(path: Path, name: str, manifest: dict[str, Any], verify: bool) -> None:
    try:
        files = manifest["files"]
        if content_hash(files) != manifest["data_sha256"]:
            raise DataError(f"{path / 'manifest.json'}: altered: its hashes do not match data_sha256", _again(name))
        for file_name, expected in files.items():
            _check_file(path / file_name, expected, name, verify)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path / 'manifest.json'}: incomplete: {error}", _again(name)) from None


def _check_file(path: Path, expected: dict[str, Any], name: str, verify: bool) -> None:
    if not path.is_file():
        raise DataError(f"{path}: missing, though the manifest names it", _again(name))
    size_bytes = path.stat().st_size
    if size_bytes != expected["size_bytes"]:
        raise DataError(f"{path}: {size_bytes} bytes, the manifest says {expected['size_bytes']}", _again(name))
    if verify and (digest := sha256_file(path)) != expected["sha256"]:
        raise DataError(
            f"{path}: altered: sha256 {digest[:16]}..., the manifest says {expected['sha256'][:16]}...", _again(name)
        )


def _again(name: str) -> str:
    return f"prepare the set again: `frog data prepare --name {name} --force` with the corpus it came from"

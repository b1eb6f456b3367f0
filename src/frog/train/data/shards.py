"""Shards: one flat file with the tokens of complete documents, and one with the start of each document."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from frog.train.data.manifest import OFFSET_BYTES, DataFile, Shard, SplitSummary

SHARD_TOKENS = 64 * 1024 * 1024
OFFSET_DTYPE = np.dtype(f"<i{OFFSET_BYTES}")


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest type that can hold each token id, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


class HashedFile:
    """A file that computes its hash while writing, and syncs to disk when closed."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._file: BinaryIO = open(path, "xb")  # noqa: SIM115 (closed by `close`, and by SplitWriter.abandon)
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._size_bytes += len(data)

    def close(self) -> DataFile:
        """Close the file; return its entry for the manifest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return DataFile(size_bytes=self._size_bytes, sha256=self._digest.hexdigest())

    def abandon(self) -> None:
        self._file.close()


class SplitWriter:
    """Writes the documents of one split with bounded memory: never holds a whole shard.

    A shard ends after the document that reaches `shard_tokens`; no document spans two shards.
    """

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int, end_id: int) -> None:
        self._folder, self._split, self._dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self._end_id = end_id
        self._tokens: HashedFile | None = None
        self._offsets: HashedFile | None = None
        self._shard_size = self._shard_documents = 0
        self._in_document = False
        self.shards: list[Shard] = []
        self.files: dict[str, DataFile] = {}
        self.num_bytes = 0

    def add(self, token_ids: list[int], num_bytes: int, ends_document: bool) -> None:
        """Append a piece of a document, and the end-of-document token after its last piece."""
        if self._tokens is None or self._offsets is None:
            stem = f"{self._split}_{len(self.shards):05d}"
            self._tokens = HashedFile(self._folder / f"{stem}.bin")
            self._offsets = HashedFile(self._folder / f"{stem}.offsets.bin")
        if not self._in_document:
            self._offsets.write(np.array([self._shard_size], OFFSET_DTYPE).tobytes())
            self._shard_documents += 1
        if ends_document:
            token_ids = [*token_ids, self._end_id]
        self._tokens.write(np.array(token_ids, self._dtype).tobytes())
        self._shard_size += len(token_ids)
        self.num_bytes += num_bytes
        self._in_document = not ends_document
        if ends_document and self._shard_size >= self._shard_tokens:
            self._close_shard()

    def finish(self) -> SplitSummary:
        """Close the last shard; return the split's entry for the manifest."""
        self._close_shard()
        return SplitSummary(
            num_documents=sum(shard.num_documents for shard in self.shards),
            num_tokens=sum(shard.num_tokens for shard in self.shards),
            num_bytes=self.num_bytes,
            shards=self.shards,
        )

    def abandon(self) -> None:
        """Close the open files without completing them."""
        for file in (self._tokens, self._offsets):
            if file is not None:
                file.abandon()

    def _close_shard(self) -> None:
        if self._tokens is None or self._offsets is None:
            return
        self.shards.append(
            Shard(
                tokens=self._tokens.name,
                offsets=self._offsets.name,
                num_tokens=self._shard_size,
                num_documents=self._shard_documents,
            )
        )
        for file in (self._tokens, self._offsets):
            self.files[file.name] = file.close()
        self._tokens = self._offsets = None
        self._shard_size = self._shard_documents = 0

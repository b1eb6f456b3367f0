"""The manifest of a prepared set: its source, parameters and files. Does not need numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from frog.core.errors import DataError
from frog.core.files import sha256_file
from frog.core.schema import Digest, FileName, Natural, Positive, Typed, read_typed

SPLITS = ("train", "heldout")
OFFSET_BYTES = 8
_TOKEN_BYTES = {"<u2": 2, "<u4": 4}


class DataFile(Typed, frozen=True):
    """One file of a set."""

    size_bytes: Natural
    sha256: Digest


class Shard(Typed, frozen=True):
    """Complete documents: one file with their tokens, another with the start of each document."""

    tokens: FileName
    offsets: FileName
    num_tokens: Positive
    num_documents: Positive


class SplitSummary(Typed, frozen=True):
    """One split of a set."""

    num_documents: Positive
    num_tokens: Positive
    num_bytes: Natural
    """Bytes of text."""
    shards: list[Shard]


class TokenizerSummary(Typed, frozen=True):
    """The tokenizer: how it was trained, or which file it came from; `sample_chars` is 0 for a given one."""

    kind: str
    end_of_document: str
    vocab_size_asked: Positive
    sample_chars: Natural
    tokenizers_version: str


class DataManifest(Typed, frozen=True):
    """data/<name>/manifest.json"""

    KIND: ClassVar[str] = "the manifest of a prepared data set"
    FORMAT: ClassVar[int | None] = 2

    name: str
    source: str
    created: str
    vocab_size: Annotated[int, Meta(ge=1, le=1 << 32)]
    dtype: Literal["<u2", "<u4"]
    seed: int
    heldout_fraction: Annotated[float, Meta(ge=0, le=1)]
    tokenizer: TokenizerSummary
    splits: dict[str, SplitSummary]
    data_sha256: Digest
    """`content_hash` of the files."""
    files: dict[FileName, DataFile]

    def problem(self) -> str | None:
        """Describe an inconsistency of the manifest; None if there is none."""
        if content_hash(self.files) != self.data_sha256:
            return "altered: its hashes do not match data_sha256"
        if self.splits.keys() != set(SPLITS):
            return f"$.splits: found {', '.join(self.splits) or 'none'}, expected {' and '.join(SPLITS)}"
        if self.vocab_size > 1 << 8 * _TOKEN_BYTES[self.dtype]:
            return f"$.dtype: found {self.dtype}, which is too small for the {self.vocab_size} tokens of $.vocab_size"
        for name, split in self.splits.items():
            for what in ("num_tokens", "num_documents"):
                said, counted = getattr(split, what), sum(getattr(shard, what) for shard in split.shards)
                if said != counted:
                    return f"$.splits.{name}.{what}: found {said}, but its shards have {counted}"
            for shard in split.shards:
                if wrong := self._wrong_size(shard):
                    return wrong
        return None

    def _wrong_size(self, shard: Shard) -> str | None:
        """Describe a file of a shard that is not listed, or whose size does not match its counts."""
        sizes = {
            shard.tokens: shard.num_tokens * _TOKEN_BYTES[self.dtype],
            shard.offsets: shard.num_documents * OFFSET_BYTES,
        }
        for name, size_bytes in sizes.items():
            if name not in self.files:
                return f"$.files: {name} is missing, but a shard names it"
            if self.files[name].size_bytes != size_bytes:
                actual_bytes = self.files[name].size_bytes
                return f"$.files.{name}.size_bytes: found {actual_bytes}, but its counts require {size_bytes}"
        return None


def content_hash(files: Mapping[str, DataFile]) -> str:
    """Return one hash over the names and hashes of all files of a set: equal if and only if the data is equal."""
    lines = "".join(f"{name} {files[name].sha256}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def read_data_manifest(path: Path) -> DataManifest:
    """Read a manifest. Raises DataError if it is invalid or inconsistent."""
    try:
        manifest = read_typed(path, DataManifest, prepare_again(path.parent.name), DataError)
    except FileNotFoundError:
        raise DataError(f"{path}: missing", prepare_again(path.parent.name)) from None
    if problem := manifest.problem():
        raise DataError(f"{path}: {problem}", prepare_again(path.parent.name))
    return manifest


def check_file(path: Path, expected: DataFile, *, verify: bool) -> None:
    """Compare a file's size, and with `verify` its hash, with the manifest. Raises DataError if it differs."""
    hint = prepare_again(path.parent.name)
    if not path.is_file():
        raise DataError(f"{path}: missing, but the manifest names it", hint)
    size_bytes = path.stat().st_size
    if size_bytes != expected.size_bytes:
        raise DataError(f"{path}: {size_bytes} bytes, but the manifest has {expected.size_bytes}", hint)
    try:
        digest = sha256_file(path) if verify else expected.sha256
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}", hint) from None
    if digest != expected.sha256:
        raise DataError(f"{path}: altered: sha256 {digest[:16]}..., the manifest has {expected.sha256[:16]}...", hint)


def prepare_again(name: str) -> str:
    """Return the hint for an unusable set."""
    return f"prepare the set again: `frog data prepare --name {name} --force` with its original corpus"

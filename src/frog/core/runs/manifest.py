"""A checkpoint's manifest: its format, and the comparison with the files next to it. Does not need torch."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from frog.core.errors import CheckpointError, Damage, DamageCause, ErrorFacts
from frog.core.files import sha256_file, write_json
from frog.core.schema import Digest, FileName, Name, Natural, Positive, Typed, convert, read_typed


def part_file(rank: int) -> str:
    """Return the name of a rank's checkpoint file."""
    return f"rank_{rank}.safetensors"


def report_file(rank: int) -> str:
    """Return the name of a rank's report about its part; the manifest replaces all reports."""
    return f"rank_{rank}.json"


class FileEntry(Typed, frozen=True):
    """One file of a checkpoint."""

    bytes: Natural
    sha256: Digest


class Piece(Typed, frozen=True):
    """A rectangle of a tensor, as one rank wrote it."""

    file: FileName
    key: Name
    """Name of the piece in the file."""
    offset: list[Natural]
    shape: list[Natural]


class TensorEntry(Typed, frozen=True):
    """One tensor of the world, and the pieces that tile it."""

    shape: list[Natural]
    dtype: Name
    pieces: list[Piece]


class PartReport(Typed, frozen=True):
    """rank_N.json: one rank's part of a checkpoint in progress."""

    KIND: ClassVar[str] = "a rank's part of a checkpoint"

    file: FileEntry
    tensors: dict[Name, TensorEntry]


class Manifest(Typed, frozen=True):
    """manifest.json: the list of all files and tensors of a checkpoint."""

    KIND: ClassVar[str] = "a checkpoint's manifest"
    FORMAT: ClassVar[int | None] = 2

    step: Natural
    world_size: Positive
    """Number of ranks that wrote it."""
    state: dict[str, Any]
    """Values other than tensors, defined by the training program."""
    tensors: dict[Name, TensorEntry]
    files: dict[FileName, FileEntry]

    @property
    def payload_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())

    def problem(self) -> str | None:
        """Describe the first inconsistency of the manifest; None if there is none."""
        for name, tensor in self.tensors.items():
            num_elements = 0
            for piece in tensor.pieces:
                num_elements += math.prod(piece.shape)
                if piece.file not in self.files:
                    return f"$.tensors[{name}]: a piece is in {piece.file}, which $.files does not list"
                if math.prod(piece.shape) > self.files[piece.file].bytes:
                    return f"$.tensors[{name}]: a piece of shape {piece.shape} is larger than its file, {piece.file}"
                if not _lies_in(piece, tensor.shape):
                    return f"$.tensors[{name}]: a piece of shape {piece.shape} at {piece.offset} exceeds {tensor.shape}"
            if num_elements > math.prod(tensor.shape):
                return f"$.tensors[{name}]: its pieces have {num_elements} elements, more than {tensor.shape}"
        return None


def _lies_in(piece: Piece, shape: list[int]) -> bool:
    return len(piece.offset) == len(piece.shape) == len(shape) and all(
        start + count <= size for start, count, size in zip(piece.offset, piece.shape, shape, strict=True)
    )


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hex SHA-256 of a manifest without its own hash."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write manifest.json with its own hash."""
    table = {"format": Manifest.FORMAT, **msgspec.to_builtins(manifest)}
    write_json(folder / "manifest.json", {**table, "sha256": manifest_hash(table)})


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises CheckpointError if it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        table = read_typed(path, dict[str, Any], error=CheckpointError)
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: incomplete: no manifest.json") from None
    manifest = convert(table, Manifest, str(path), error=CheckpointError)
    if table.get("sha256") != manifest_hash(table):
        raise _damaged("corrupt", f"{path}: its content does not match its hash")
    if problem := manifest.problem():
        raise CheckpointError(f"{path}: {problem}")
    if folder.name.startswith("step_") and folder.name != f"step_{manifest.step:08d}":
        raise CheckpointError(f"{path}: $.step: found {manifest.step}, but the folder is {folder.name}")
    return manifest


def verify_files(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest. Raises CheckpointError that describes the first difference."""
    for name, entry in manifest.files.items():
        path = folder / name
        try:
            if not path.is_file():
                raise _damaged("absent", f"{path}: missing, or not a regular file", name)
            num_bytes = path.stat().st_size
            if num_bytes != entry.bytes:
                raise _damaged("torn", f"{path}: {num_bytes} bytes, the manifest has {entry.bytes}", name)
            digest = sha256_file(path)
        except OSError as error:
            raise _damaged("torn", f"{path}: cannot be read: {error.strerror}", name) from None
        if digest != entry.sha256:
            what = f"{path}: its SHA-256 is {digest[:12]}…, the manifest has {entry.sha256[:12]}…"
            raise _damaged("corrupt", what, name)


def damage_of(error: CheckpointError | OSError, step: int) -> Damage:
    """Convert an error from reading a step's checkpoint to its damage."""
    if isinstance(error, CheckpointError):
        known = error.facts.damage or (Damage(cause="torn", what=error.what),)
        return replace(known[0], step=step)
    return Damage(cause="torn", what=str(error), step=step)


def _damaged(cause: DamageCause, what: str, name: str = "") -> CheckpointError:
    """Return the error for a checkpoint whose file `name` is damaged; find the rank that wrote it."""
    match = re.fullmatch(r"rank_(\d+)\.safetensors", name)
    damage = Damage(cause=cause, what=what, rank=int(match[1]) if match else None)
    return CheckpointError(what, facts=ErrorFacts(cause=cause, damage=(damage,)))

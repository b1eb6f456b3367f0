"""Loading of checkpoints: only after every hash matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from frog.core.errors import CheckpointError, Damage
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import Manifest, Piece, TensorEntry, damage_of, part_file, read_manifest, verify_files
from frog.train.comm.local_shard import LocalShard


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with a valid manifest; `verify` compares its files with the manifest."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return self.manifest.world_size

    @property
    def state(self) -> dict[str, Any]:
        """Values other than tensors: completed steps and tokens, the order hash, the loss scale."""
        return dict(self.manifest.state)

    def load_into(self, shards: Sequence[LocalShard] | Mapping[str, Tensor]) -> None:
        """Fill a rank's shards from the stored pieces that overlap them; any world and strategy may have written them.

        Raises:  CheckpointError that names the tensors that are missing, incomplete, or of another shape.
        """
        if isinstance(shards, Mapping):
            named = shards.items()
            shards = [LocalShard(name, tensor, (0,) * tensor.dim(), tuple(tensor.shape)) for name, tensor in named]
        entries = self.manifest.tensors
        problems = {f"{shard.name}: not in the checkpoint" for shard in shards if shard.name not in entries}
        problems |= {
            f"{shard.name}: shape {tuple(entries[shard.name].shape)} in the checkpoint, {shard.whole} in this model"
            for shard in shards
            if shard.name in entries and list(shard.whole) != entries[shard.name].shape
        }
        if problems:
            listing = "\n".join(f"  - {problem}" for problem in sorted(problems)[:10])
            raise CheckpointError(
                f"{self.path} does not fit this model and optimizer: {len(problems)} tensors\n{listing}",
                "resume with the run's original model and optimizer, which its run.json names",
            )
        with torch.no_grad(), _Files(self.path) as files:
            for shard in shards:
                entry = entries[shard.name]
                filled = sum(_copy_overlap(shard, entry, piece, files) for piece in entry.pieces)
                if filled != shard.tensor.numel():
                    raise CheckpointError(
                        f"{self.path}: its pieces of {shard.name} fill {filled} of the {shard.tensor.numel()} elements "
                        f"at {list(shard.offset)}"
                    )

    def load_own(self, rank: int) -> dict[str, Tensor] | None:
        """Load the per-rank tensors that this rank wrote, or return None if the checkpoint is from a smaller world."""
        if rank >= self.world_size:
            return None
        prefix = f"rank_{rank}/"
        with _Files(self.path) as files:
            name = part_file(rank)
            return {key.removeprefix(prefix): files.get(name, key) for key in files.keys(name) if prefix in key}


class _Files:
    """The safetensors files of a checkpoint; opens each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()

    def _file(self, name: str) -> Any:
        if name not in self._open:
            try:
                self._open[name] = safe_open(self._folder / name, framework="pt")
            except (SafetensorError, OSError, MemoryError) as error:
                raise CheckpointError(f"{self._folder / name}: cannot be read: {error}") from None
        return self._open[name]

    def keys(self, name: str) -> list[str]:
        return list(self._file(name).keys())

    def get(self, name: str, key: str) -> Tensor:
        try:
            tensor: Tensor = self._file(name).get_tensor(key)
        except SafetensorError as error:
            raise CheckpointError(f"{self._folder / name}: {key} cannot be read: {error}") from error
        return tensor

    def piece(self, piece: Piece, dtype: str) -> Tensor:
        """Read a piece and check its type and shape against the manifest."""
        tensor = self.get(piece.file, piece.key)
        actual, expected = (str(tensor.dtype), list(tensor.shape)), (f"torch.{dtype}", piece.shape)
        if actual != expected:
            what = f"{piece.key} is {actual[0]} of shape {actual[1]}, the manifest has {expected[0]} of {expected[1]}"
            raise CheckpointError(f"{self._folder / piece.file}: {what}")
        return tensor


def _copy_overlap(shard: LocalShard, entry: TensorEntry, piece: Piece, files: _Files) -> int:
    """Copy the overlap of a stored piece and a shard; return its number of elements."""
    mine, theirs = [], []
    for start, size, at, count in zip(shard.offset, shard.tensor.shape, piece.offset, piece.shape, strict=True):
        lower, upper = max(start, at), min(start + size, at + count)
        if lower >= upper:
            return 0
        mine.append(slice(lower - start, upper - start))
        theirs.append(slice(lower - at, upper - at))
    source = files.piece(piece, entry.dtype)
    target = shard.tensor[tuple(mine)]
    target.copy_(source[tuple(theirs)])
    return target.numel()


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest. Raises CheckpointError if it is missing or damaged."""
    return Checkpoint(path, read_manifest(path))


def verify(checkpoint: Checkpoint) -> None:
    """Compare every file with the manifest. Raises CheckpointError that describes the first difference."""
    verify_files(checkpoint.path, checkpoint.manifest)


def find_good(folder: RunFolder, at_step: int | None = None) -> tuple[Checkpoint | None, list[Damage]]:
    """Return the last intact checkpoint, and the damage of each newer one.

    at_step: consider only this step.
    """
    passed_over: list[Damage] = []
    for step in reversed(folder.checkpoint_steps()):
        if at_step is not None and step != at_step:
            continue
        try:
            checkpoint = open_checkpoint(folder.checkpoint(step))
            verify(checkpoint)
            return checkpoint, passed_over
        except CheckpointError as error:
            passed_over.append(damage_of(error, step))
    return None, passed_over

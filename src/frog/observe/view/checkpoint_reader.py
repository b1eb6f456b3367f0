"""Read checkpoints as numpy arrays; report and skip damaged ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frog.core.errors import CheckpointError
from frog.core.runs.folder import RunFolder
from frog.core.runs.manifest import Manifest, read_manifest, verify_files

MODEL_PREFIX = "model/"


@dataclass
class CheckpointReader:
    """A checkpoint whose files all match its manifest."""

    path: Path
    manifest: Manifest
    _files: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def world_size(self) -> int:
        """Number of ranks that wrote it."""
        return self.manifest.world_size

    @property
    def payload_bytes(self) -> int:
        return self.manifest.payload_bytes

    def names(self, prefix: str = "") -> list[str]:
        """Return the tensors whose names start with `prefix`, in the manifest's order."""
        return [name for name in self.manifest.tensors if name.startswith(prefix)]

    def tensor(self, name: str) -> NDArray[Any]:
        """Assemble one tensor from its shards.

        Raises:  CheckpointError if a shard is missing, or does not fit.
        """
        from safetensors import SafetensorError

        try:
            entry = self.manifest.tensors[name]
            whole = np.zeros(entry.shape, np.dtype(entry.dtype))
            for piece in entry.pieces:
                window = tuple(
                    slice(start, start + count) for start, count in zip(piece.offset, piece.shape, strict=True)
                )
                whole[window] = self._file(piece.file).get_tensor(piece.key)
        except (SafetensorError, KeyError, TypeError, ValueError, OSError, MemoryError) as error:
            raise CheckpointError(f"{self.path}: {name} cannot be read: {error!r}") from None
        return whole

    def _file(self, name: str) -> Any:
        from safetensors import safe_open

        if name not in self._files:
            self._files[name] = safe_open(self.path / name, framework="numpy")
        return self._files[name]


def open_checkpoint(path: Path) -> CheckpointReader:
    """Read a checkpoint's manifest and check its files against it.

    Raises:  CheckpointError naming the file that is missing, or has another size or hash.
    """
    manifest = read_manifest(path)
    verify_files(path, manifest)
    return CheckpointReader(path, manifest)


def open_checkpoints(folder: RunFolder) -> tuple[list[CheckpointReader], list[str]]:
    """Return the run's good checkpoints, by step, and the problem of each damaged one."""
    good: list[CheckpointReader] = []
    problems: list[str] = []
    for step in folder.checkpoint_steps():
        try:
            good.append(open_checkpoint(folder.checkpoint(step)))
        except (CheckpointError, OSError) as error:
            problems.append(error.what if isinstance(error, CheckpointError) else str(error))
    return good, problems

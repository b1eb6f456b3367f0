"""Checkpoints as numpy arrays. Broken ones are named and passed over."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frog.core.errors import CheckpointError
from frog.core.files import sha256_file
from frog.core.runfolder import RunFolder

MODEL_PREFIX = "model/"


@dataclass
class CheckpointReader:
    """A checkpoint whose every file was held against its manifest."""

    path: Path
    manifest: dict[str, Any]
    _files: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def world_size(self) -> int:
        """How many ranks wrote it."""
        return int(self.manifest["world_size"])

    @property
    def payload_bytes(self) -> int:
        return sum(int(entry["bytes"]) for entry in self.manifest["files"].values())

    def names(self, prefix: str = "") -> list[str]:
        """The tensors whose names start with `prefix`, in the manifest's order."""
        return [name for name in self.manifest["tensors"] if name.startswith(prefix)]

    def tensor(self, name: str) -> NDArray[Any]:
        """One tensor, put together from the pieces that tile it.

        Raises:  CheckpointError if a piece is missing, or does not fit.
        """
        from safetensors import SafetensorError

        try:
            entry = self.manifest["tensors"][name]
            whole = np.zeros(entry["shape"], np.dtype(entry["dtype"]))
            for piece in entry["pieces"]:
                window = tuple(
                    slice(start, start + count) for start, count in zip(piece["offset"], piece["shape"], strict=True)
                )
                whole[window] = self._file(piece["file"]).get_tensor(piece["key"])
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise CheckpointError(f"{self.path}: {name} cannot be read: {error!r}") from None
        return whole

    def _file(self, name: str) -> Any:
        from safetensors import safe_open

        if name not in self._files:
            self._files[name] = safe_open(self.path / name, framework="numpy")
        return self._files[name]


def open_checkpoint(path: Path) -> CheckpointReader:
    """Read a checkpoint's manifest and hold its files against it.

    Raises:  CheckpointError saying which file is missing, of another size or of another hash.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        step, files = int(manifest["step"]), dict(manifest["files"])
        _ = int(manifest["world_size"]), dict(manifest["tensors"])
        expected = {name: (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no manifest.json, so it was never whole") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: not a manifest: {error!r}") from None
    for name, (num_bytes, digest) in expected.items():
        if not (path / name).is_file():
            raise CheckpointError(f"{path / name}: missing")
        if (found := (path / name).stat().st_size) != num_bytes:
            raise CheckpointError(f"{path / name}: {found} bytes, the manifest has {num_bytes}")
        if (found_digest := sha256_file(path / name)) != digest:
            raise CheckpointError(f"{path / name}: SHA-256 {found_digest[:12]}…, the manifest has {digest[:12]}…")
    if path.name != f"step_{step:08d}":
        raise CheckpointError(f"{path}: the manifest says step {step}")
    return CheckpointReader(path, manifest)


def open_checkpoints(folder: RunFolder) -> tuple[list[CheckpointReader], list[str]]:
    """The run's good checkpoints, in order of steps, and what is wrong with each of the others."""
    good: list[CheckpointReader] = []
    problems: list[str] = []
    for step in folder.checkpoint_steps():
        try:
            good.append(open_checkpoint(folder.checkpoint(step)))
        except (CheckpointError, OSError) as error:
            problems.append(error.what if isinstance(error, CheckpointError) else str(error))
    return good, problems

"""Checkpoints back from disk: trusted only when every hash agrees."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from frog.checkpoint.save import FORMAT, manifest_hash
from frog.core.errors import CheckpointError
from frog.core.files import sha256_file
from frog.core.runfolder import RunFolder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose manifest was read; `verify` says whether its files are what the manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def world_size(self) -> int:
        """How many ranks wrote it."""
        return int(self.manifest["world_size"])

    @property
    def state(self) -> dict[str, Any]:
        """What is no tensor: steps and tokens done, the order hash, the loss scale."""
        return dict(self.manifest["state"])

    def load_into(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill `tensors`, each from the pieces that tile it, whatever world wrote them.

        Raises:  CheckpointError naming the tensors that are missing or of another shape.
        """
        entries = self.manifest["tensors"]
        problems = [f"{name}: not in the checkpoint" for name in tensors.keys() - entries.keys()]
        problems += [
            f"{name}: shape {tuple(entries[name]['shape'])} in the checkpoint, {tuple(tensor.shape)} in this model"
            for name, tensor in tensors.items()
            if name in entries and list(tensor.shape) != entries[name]["shape"]
        ]
        if problems:
            listing = "\n".join(f"  - {problem}" for problem in sorted(problems)[:10])
            raise CheckpointError(
                f"{self.path} does not fit this model: {len(problems)} tensors\n{listing}",
                "resume with the model that the run was started with (its run.json says which)",
            )
        with torch.no_grad(), _Files(self.path) as files:
            for name, tensor in tensors.items():
                for piece in entries[name]["pieces"]:
                    target = tensor
                    for dim, (start, count) in enumerate(zip(piece["offset"], piece["shape"], strict=True)):
                        target = target.narrow(dim, start, count)
                    target.copy_(files.get(piece["file"], piece["key"]))

    def load_own(self, rank: int) -> dict[str, Tensor] | None:
        """The tensors that rank wrote for itself alone, or None if the checkpoint comes from a smaller world."""
        if rank >= self.world_size:
            return None
        prefix = f"rank_{rank}/"
        with _Files(self.path) as files:
            keys = files.keys(f"rank_{rank}.safetensors")
            return {k.removeprefix(prefix): files.get(f"rank_{rank}.safetensors", k) for k in keys if prefix in k}


class _Files:
    """The safetensors files of a checkpoint, each opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, Any] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.clear()

    def _file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = safe_open(self._folder / name, framework="pt")
        return self._open[name]

    def keys(self, name: str) -> list[str]:
        return list(self._file(name).keys())

    def get(self, name: str, key: str) -> Tensor:
        try:
            tensor: Tensor = self._file(name).get_tensor(key)
        except SafetensorError as error:
            raise CheckpointError(f"{self._folder / name}: {key} cannot be read: {error}") from error
        return tensor


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint's manifest. Raises CheckpointError if there is none, or none that can be read."""
    manifest_path = path / "manifest.json"
    try:
        manifest = json.loads(manifest_path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no manifest.json, so it was never whole") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{manifest_path}: not valid JSON: {error}") from None
    keys = ("step", "world_size", "state", "tensors", "files")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or any(key not in manifest for key in keys):
        raise CheckpointError(f"{manifest_path}: not a manifest of format {FORMAT}")
    if manifest.get("sha256") != manifest_hash(manifest):
        raise CheckpointError(f"{manifest_path}: its content is not what was hashed when it was written")
    return Checkpoint(path, manifest)


def verify(checkpoint: Checkpoint) -> None:
    """Hold every file against the manifest. Raises CheckpointError naming the first that differs, and how."""
    for name, entry in checkpoint.manifest["files"].items():
        path = checkpoint.path / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing")
        if path.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, the manifest has {entry['bytes']}")
        if (digest := sha256_file(path)) != entry["sha256"]:
            raise CheckpointError(f"{path}: its SHA-256 is {digest[:12]}…, the manifest has {entry['sha256'][:12]}…")


def find_good(folder: RunFolder, at_step: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint that can be trusted, and what was wrong with those passed over.

    `at_step` asks for that step alone.
    """
    passed_over: list[str] = []
    for step in reversed(folder.checkpoint_steps()):
        if at_step is not None and step != at_step:
            continue
        try:
            checkpoint = open_checkpoint(folder.checkpoint(step))
            verify(checkpoint)
            return checkpoint, passed_over
        except CheckpointError as error:
            passed_over.append(error.what)
    return None, passed_over

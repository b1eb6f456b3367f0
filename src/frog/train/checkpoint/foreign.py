"""Read and compare checkpoints that other programs wrote: safetensors, `torch.save`, torch.distributed.checkpoint."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frog.core.errors import CheckpointError

_TORCH_SAVE = {".pt", ".pth", ".bin", ".ckpt", ".tar"}
_METADATA = ".metadata"
"""File of torch.distributed.checkpoint that makes a folder a checkpoint."""

Values = dict[str, Any]
"""Tensors, numbers and other values by their path: `model.layers.0.weight`."""


@dataclass
class Difference:
    """The comparison of two checkpoints."""

    num_equal: int = 0
    """Tensors that are equal bit for bit."""
    different: dict[str, float] = field(default_factory=dict)
    """Largest absolute difference of each other tensor; inf for another shape or type."""
    missing: list[str] = field(default_factory=list)
    """Tensors of the first checkpoint that the second lacks, and the reverse."""
    other: list[str] = field(default_factory=list)
    """Values that are not tensors and differ."""

    @property
    def is_equal(self) -> bool:
        """True if both have the same tensors with the same values."""
        return not self.different and not self.missing


def checkpoint_files(path: Path) -> list[Path]:
    """Return the files, and the folders of torch.distributed.checkpoint, of the newest checkpoint below a path.

    The newest is the one whose file was written last, together with the other checkpoint files in its folder.
    """
    if path.is_file():
        return [path]
    candidates = sorted(file for file in path.rglob("*") if _is_checkpoint(file))
    if not candidates:
        return []
    newest = max(candidates, key=lambda file: file.stat().st_mtime_ns)
    return [file for file in candidates if file.parent == newest.parent]


def compare(first: Path, second: Path, files: list[Path]) -> Difference:
    """Compare checkpoints in two folders, or two files. files: those of `first`.

    Raises:  CheckpointError if a file cannot be read.
    """
    difference = Difference()
    for file in files:
        other = second / file.relative_to(first) if first != file else second
        if not other.exists():
            difference.missing.append(f"{other}: the whole file")
            continue
        _compare(read_values(file), read_values(other), difference)
    return difference


def read_values(path: Path) -> Values:
    """Return all values of a checkpoint by their path.

    A file of `torch.save` may contain any Python object: read only files of programs that you run yourself.

    Raises:  CheckpointError if it cannot be read.
    """
    try:
        return dict(_flat(_load(path)))
    except Exception as error:  # unpickling raises whatever it finds
        said = str(error).strip().splitlines()
        raise CheckpointError(f"{path}: cannot be read as a checkpoint: {said[0][:200] if said else error!r}") from None


def _is_checkpoint(path: Path) -> bool:
    if path.is_dir():
        return (path / _METADATA).is_file()
    return path.suffix in _TORCH_SAVE or path.suffix == ".safetensors"


def _load(path: Path) -> Any:
    if path.is_dir():
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        with tempfile.TemporaryDirectory(prefix="frog-dcp-") as folder:
            dcp_to_torch_save(path, Path(folder) / "whole.pt")
            return _load(Path(folder) / "whole.pt")
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=False)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested dicts and lists with their paths."""
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = dict(enumerate(value)).items()
    elif hasattr(value, "state_dict"):
        items = value.state_dict().items()
    else:
        yield path, value
        return
    for name, inner in items:
        yield from _flat(inner, f"{path}.{name}" if path else str(name))


def _compare(first: Values, second: Values, found: Difference) -> None:
    for name in {**first, **second}:
        one, other = first.get(name), second.get(name)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            if (size := _largest_difference(one, other)) == 0:
                found.num_equal += 1
            else:
                found.different[name] = size
        elif isinstance(one, Tensor) or isinstance(other, Tensor):
            found.missing.append(name)
        elif not _same(one, other):
            found.other.append(name or "an object without names")


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """Return 0.0 only if the tensors are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if torch.equal(one, other):
        return 0.0
    if_nan = 0.0 if _same_nans(one, other) else math.inf
    differences = (one.to(torch.float64) - other.to(torch.float64)).abs().nan_to_num(if_nan)
    return float(differences.max())


def _same_nans(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one.isnan(), other.isnan()))


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # for example an array with several values
        return repr(one) == repr(other)

"""Compare the weights of two checkpoints: how far they moved, and which tensors differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frog.core.config.model import MODULE_PARTS
from frog.core.errors import CheckpointError
from frog.observe.view.checkpoint_reader import MODEL_PREFIX, CheckpointReader

_MAX_ROWS = 64
_SQUARES = "optimizer/exp_avg_sq/"


@dataclass
class Movement:
    """Distance that each group of weights moved in each interval: ||W_b - W_a|| / ||W_a||."""

    intervals: list[tuple[int, int]]
    groups: list[str]
    values: NDArray[np.float64]
    """Groups x intervals; NaN where the earlier weights are all zero or a tensor cannot be compared."""
    by_layer: bool


def weight_movement(checkpoints: Sequence[CheckpointReader]) -> Movement | None:
    """Compare every two adjacent checkpoints; None if there are fewer than two.

    Rows are tensors; for a model with more than 64, they are layers, whose tensors form one long vector.
    """
    pairs = list(itertools.pairwise(checkpoints))
    if not pairs:
        return None
    names = checkpoints[0].names(MODEL_PREFIX)
    labels = {name: name.removeprefix(MODEL_PREFIX) for name in names}
    by_layer = len(names) > _MAX_ROWS
    if by_layer:
        labels = {name: _layer(label) for name, label in labels.items()}
    groups = sorted(set(labels.values()), key=_model_order)
    squares = np.zeros((2, len(groups), len(pairs)))
    for column, (before, after) in enumerate(pairs):
        for name, moved, size in _squared_norms(before, after, names):
            squares[:, groups.index(labels[name]), column] += moved, size
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.sqrt(squares[0]) / np.sqrt(squares[1])
    values[~np.isfinite(values)] = np.nan
    return Movement([(before.step, after.step) for before, after in pairs], groups, values, by_layer)


def _squared_norms(
    before: CheckpointReader, after: CheckpointReader, names: Sequence[str]
) -> Iterator[tuple[str, float, float]]:
    for name in names:
        try:
            old, new = before.tensor(name).astype(np.float64), after.tensor(name).astype(np.float64)
        except CheckpointError:
            continue
        if old.shape == new.shape:
            yield name, float(np.sum((new - old) ** 2)), float(np.sum(old**2))


def _layer(label: str) -> str:
    """Return the layer of a name: 'model.layers.3.mlp.up.weight' -> 'model.layers.3'; other names stay."""
    parts = label.split(".")
    for index, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: index + 1])
    return label


def _model_order(label: str) -> tuple[int, list[tuple[int, int, str]]]:
    """Return the sort key: embeddings, then layers by number, then the rest."""
    parts = label.split(".")
    place = 1 if any(part.isdigit() for part in parts) else 2
    if "embed" in label:
        place = 0
    return place, [_part_order(part) for part in parts]


def _part_order(part: str) -> tuple[int, int, str]:
    if part.isdigit():
        return 0, int(part), ""
    if part in MODULE_PARTS:
        return 1, MODULE_PARTS.index(part), ""
    return 2, 0, part


def differences(a: CheckpointReader, b: CheckpointReader) -> Iterator[tuple[str, float, str]]:
    """Yield every tensor that differs: its name, the relative difference, and a description.

    AdamW's means of squared gradients are compared by their square roots: squares differ by twice as much as
    the gradients.
    """
    names = [*a.names(), *(name for name in b.names() if name not in set(a.names()))]
    for name in names:
        if name not in a.manifest.tensors or name not in b.manifest.tensors:
            yield name, math.inf, f"only in {'A' if name in a.manifest.tensors else 'B'}"
            continue
        try:
            left, right = a.tensor(name), b.tensor(name)
        except CheckpointError as error:
            yield name, math.inf, error.what
            continue
        difference = _tensor_difference(left, right, name.startswith(_SQUARES))
        if difference is not None:
            yield name, *difference


def _tensor_difference(left: NDArray[Any], right: NDArray[Any], squares: bool) -> tuple[float, str] | None:
    """Return ||a - b|| / max(||a||, ||b||), of roots if a and b are squares, and a description; None if bit for bit."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return math.inf, f"{left.dtype} {left.shape} in A, {right.dtype} {right.shape} in B"
    if left.tobytes() == right.tobytes():
        return None
    left_64, right_64 = left.astype(np.float64), right.astype(np.float64)
    if squares:
        with np.errstate(invalid="ignore"):  # the root of a negative number is NaN, and is reported as such
            left_64, right_64 = np.sqrt(left_64), np.sqrt(right_64)
    difference = left_64 - right_64
    scale = max(_norm(left_64), _norm(right_64))
    relative = _norm(difference) / scale if scale else 0.0
    if not math.isfinite(relative):
        return math.inf, "NaN or infinite in one of the runs"
    of = " of the roots" if squares else ""
    return relative, f"relative {relative:.1e}{of}, largest element difference {float(np.abs(difference).max()):.1e}"


def _norm(values: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.sum(values**2)))

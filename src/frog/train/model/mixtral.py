"""Convert a mixture of experts to and from Mixtral's file format: one set of matrices per expert, by number.

In memory a layer's experts are stacked (`train/model/moe.py`); files have w1 (gate), w3 (up) and w2 (down) per expert.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from frog.core.errors import ShapeError

_PARTS = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
"""The matrices of an expert that are stacked into one matrix in memory."""

_IN_MEMORY = re.compile(r"(.*layers\.\d+)\.mlp\.(gate\.weight|experts\..+)")
_IN_FILES = re.compile(r"(.*layers\.\d+)\.block_sparse_moe\.(gate\.weight|experts\..+)")
_EXPERT = re.compile(r"(.*\.mlp\.experts)\.\d+\.w\d\.weight")


def split_experts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return views of a tensor by their names in files, splitting stacked experts."""
    name = _IN_MEMORY.sub(r"\1.block_sparse_moe.\2", name)
    stem, _, stack = name.rpartition(".")
    if ".block_sparse_moe.experts." not in name:
        return {name: tensor}
    return {
        f"{stem}.{number}.{part}.weight": matrix
        for number, expert in enumerate(tensor)
        for part, matrix in zip(_PARTS[stack], expert.chunk(len(_PARTS[stack])), strict=True)
    }


def stack_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Invert `split_experts`, for all of a model's tensors. Incomplete sets of experts stay separate.

    Raises:  ShapeError if the experts of one layer differ in shape.
    """
    weights = {_IN_FILES.sub(r"\1.mlp.\2", name): tensor for name, tensor in weights.items()}
    for stem in sorted({match[1] for name in weights if (match := _EXPERT.fullmatch(name))}):
        for stack, parts in _PARTS.items():
            experts: list[Tensor] = []
            shapes: set[torch.Size] = set()
            while all(f"{stem}.{len(experts)}.{part}.weight" in weights for part in parts):
                matrices = [weights.pop(f"{stem}.{len(experts)}.{part}.weight") for part in parts]
                shapes |= {matrix.shape for matrix in matrices}
                if len(shapes) > 1:
                    raise ShapeError(f"{stem}: {' and '.join(parts)} differ in shape: {sorted(map(tuple, shapes))}")
                experts.append(torch.cat(matrices))
            if experts:
                weights[f"{stem}.{stack}"] = torch.stack(experts)
    return weights

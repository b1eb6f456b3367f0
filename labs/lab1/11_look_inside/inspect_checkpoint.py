"""Describe the contents of a checkpoint file."""

from pathlib import Path
from typing import Any

import torch


def describe(path: Path) -> dict[str, Any]:
    """Describe a checkpoint {"step": int, "model": a state dict, "optimizer": AdamW's state dict or absent}.

    -> "step": its step
       "weights": the number of elements in the model's tensors; a tensor with two names counts once
       "weight_bytes": their bytes
       "average_bytes": bytes of AdamW's exp_avg and exp_avg_sq; 0 without an optimizer
       "not_finite": the names of the model's tensors in which some value is not finite, sorted

    Do not run code from the file.

    Raises:  ValueError if the file is not such a checkpoint: truncated, something else, or with code in it.
    """
    raise NotImplementedError("fill in describe")

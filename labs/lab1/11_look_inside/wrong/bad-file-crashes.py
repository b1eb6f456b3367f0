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
    state = torch.load(path, weights_only=True)
    step, model = state["step"], state["model"]
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in model.values()}
    kept = state.get("optimizer", {"state": {}})["state"].values()
    return {
        "step": step,
        "weights": sum(tensor.numel() for tensor in storages.values()),
        "weight_bytes": sum(tensor.nbytes for tensor in storages.values()),
        "average_bytes": sum(one["exp_avg"].nbytes + one["exp_avg_sq"].nbytes for one in kept),
        "not_finite": sorted(name for name, tensor in model.items() if not torch.isfinite(tensor).all()),
    }

"""Gradient accumulation in data parallelism."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch


def accumulate(replica: Any, micro_batches: list[torch.Tensor], loss_of: Callable[..., torch.Tensor]) -> None:
    """Leave in .grad, on every rank, the gradient of the mean loss over all micro-batches of all ranks."""
    loss_of(replica, torch.cat(micro_batches)).backward()

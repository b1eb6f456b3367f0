"""Gradient accumulation in data parallelism."""

from collections.abc import Callable

from typing import Any

import torch


def accumulate(replica: Any, micro_batches: list[torch.Tensor], loss_of: Callable[..., torch.Tensor]) -> None:
    """Leave in .grad, on every rank, the gradient of the mean loss over all micro-batches of all ranks."""
    *first, last = micro_batches
    with replica.no_sync():
        for micro_batch in first:
            loss_of(replica, micro_batch).backward()
    loss_of(replica, last).backward()
    for p in replica.parameters():
        p.grad.mul_(1 / len(micro_batches))

"""Gradient accumulation in data parallelism."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch


def accumulate(replica: Any, micro_batches: list[torch.Tensor], loss_of: Callable[..., torch.Tensor]) -> None:
    """Leave in .grad, on every rank, the gradient of the mean loss over all micro-batches of all ranks.

    Memory:  the activations of one micro-batch at a time.
    Comm:    reduce each gradient once.

    replica:        the model on this rank; `replica.no_sync()` as in DistributedDataParallel. Its gradients are zero.
    micro_batches:  this rank's micro-batches, the same number on each rank, all of one size.
    loss_of:        `loss_of(replica, micro_batch)` runs forward and returns the micro-batch's mean loss, a scalar.
    """
    losses = []
    last = len(micro_batches) - 1
    for number, micro_batch in enumerate(micro_batches):
        with nullcontext() if number == last else replica.no_sync():
            loss = loss_of(replica, micro_batch) / len(micro_batches)
            loss.backward(retain_graph=True)
            losses.append(loss)

"""An epoch in which ranks have different numbers of batches, of different sizes."""

from collections.abc import Callable

import torch
import torch.distributed as dist


def sgd_step(model: torch.nn.Module, rate: float) -> None:
    """Move the weights against their gradients, and clear the gradients."""
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad
            p.grad = None


def train_epoch(
    model: torch.nn.Module, batches: list[torch.Tensor], loss_of: Callable[..., torch.Tensor], rate: float
) -> int:
    """Train on this rank's batches, together with the other ranks; return the number of steps, the same on all ranks.

    In step k every rank that still has a batch uses its k-th batch. The step follows the gradient of the mean loss over
    all samples of that step on all ranks. The epoch ends when no rank has more batches.

    batches:  this rank's batches, each (samples, width). Their number differs between ranks, and may be 0.
    loss_of:  `loss_of(model, batch)` returns the mean loss over the batch, a scalar.
    """
    batch_size = torch.tensor(len(batches[0]) if batches else 0)
    dist.all_reduce(batch_size, op=dist.ReduceOp.MAX)
    coming = iter(batches)
    steps = 0
    while True:
        batch = next(coming, None)
        own = 0 if batch is None else len(batch)
        samples = torch.tensor(own)
        dist.all_reduce(samples)
        if samples == 0:
            return steps
        if batch is not None:
            (loss_of(model, batch) * own).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= batch_size * dist.get_world_size()
        sgd_step(model, rate)
        steps += 1

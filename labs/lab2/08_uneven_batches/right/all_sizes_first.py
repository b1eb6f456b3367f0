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
    sizes: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(sizes, [len(batch) for batch in batches])
    steps = max(map(len, sizes))
    for step in range(steps):
        samples = sum(own[step] for own in sizes if step < len(own))
        if step < len(batches):
            (loss_of(model, batches[step]) * len(batches[step])).backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= samples
        sgd_step(model, rate)
    return steps

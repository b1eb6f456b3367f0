"""Average gradients over the ranks, and limit their norm."""

import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every .grad, on every rank, by its mean over all ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def reduce_and_clip(model: torch.nn.Module, max_norm: float) -> float:
    """Leave in .grad, on every rank, the mean over all ranks, not longer than `max_norm`.

    The norm is that of all gradients of the model as one vector. A shorter vector does not change.

    Returns  the norm of the mean before clipping, the same on all ranks.
    Equals:  average_gradients, then torch.nn.utils.clip_grad_norm_, within rtol 1e-5.
    """
    gradients = [p.grad for p in model.parameters()]
    total = sum(g.square().sum() for g in gradients)
    dist.all_reduce(total)
    norm = torch.sqrt(total).item()
    average_gradients(model)
    factor = min(1.0, max_norm / norm) if norm else 1.0
    for g in gradients:
        g *= factor
    return norm

"""Average gradients over the ranks, and limit their norm."""

import torch
import torch.distributed as dist


def average_gradients(model: torch.nn.Module) -> None:
    """Replace every .grad, on every rank, by its mean over all ranks."""
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def reduce_and_clip(model: torch.nn.Module, max_norm: float) -> float:
    """Leave in .grad, on every rank, the mean over all ranks, no longer than `max_norm`."""
    average_gradients(model)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

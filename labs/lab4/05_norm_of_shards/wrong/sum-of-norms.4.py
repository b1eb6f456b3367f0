"""Clip the gradient of a model whose parameters are sharded over the ranks, except a few."""

import torch
import torch.distributed as dist
from torch import nn


def clip_grad_norm(model: nn.Module, copies: set[str], max_norm: float) -> float:
    """Limit the norm of the whole model's gradient to `max_norm`, in place.

    model:   the names are those of the whole model. Each parameter and its .grad hold this rank's shard: no other rank
             has these elements, and a rank may have none. The gradients are already the mean over the ranks.
    copies:  names of parameters that are whole on every rank, with the same gradient on every rank.

    A .grad may be None. The norm is that of all gradients as one vector; a shorter vector does not change.

    Returns  the norm before clipping, the same on all ranks.
    Comm:    one all-reduce of one number.
    Equals:  torch.nn.utils.clip_grad_norm_ on the whole model in one process, within rtol 1e-5.
    """
    square = torch.zeros(())
    for name, p in model.named_parameters():
        if p.grad is not None:
            square += p.grad.pow(2).sum() / (dist.get_world_size() if name in copies else 1)
    norm = square.sqrt()
    dist.all_reduce(norm)
    norm = norm.item()
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(min(1, max_norm / norm))
    return norm

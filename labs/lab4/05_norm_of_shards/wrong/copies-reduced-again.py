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
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    total = torch.zeros(())
    for name, grad in grads.items():
        if name in copies:
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
        else:
            total += grad.square().sum()
    dist.all_reduce(total)
    for name, grad in grads.items():
        if name in copies:
            total += grad.square().sum()
    norm = total.sqrt().item()
    if norm > max_norm:
        for grad in grads.values():
            grad *= max_norm / norm
    return norm

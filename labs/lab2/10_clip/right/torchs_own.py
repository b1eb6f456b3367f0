"""Use one flat all-reduce, then torch's function."""

import torch
import torch.distributed as dist


def reduce_and_clip(model, max_norm):
    flat = torch.cat([p.grad.view(-1) for p in model.parameters()]) / dist.get_world_size()
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat, [p.grad for p in model.parameters()])
    offset = 0
    for p in model.parameters():
        p.grad = flat[offset : offset + p.numel()].view_as(p).clone()
        offset += p.numel()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)

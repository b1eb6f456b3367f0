"""Agree on the number of steps at the start; weight the gradients before adding them."""

from itertools import chain, repeat

import torch
import torch.distributed as dist


def train_epoch(model, batches, loss_of, rate):
    mine = [len(batch) for batch in batches]
    sizes = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, mine)
    num_steps = max(map(len, sizes))
    parameters = list(model.parameters())
    for step, batch in zip(range(num_steps), chain(batches, repeat(None))):
        total = sum(size[step] for size in sizes if step < len(size))
        if batch is None:
            flat = torch.zeros(sum(p.numel() for p in parameters))
        else:
            loss = loss_of(model, batch) * (len(batch) / total)
            flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        dist.all_reduce(flat)
        for p, g in zip(parameters, flat.split([p.numel() for p in parameters])):
            p.data.sub_(g.view_as(p), alpha=rate)
    return num_steps

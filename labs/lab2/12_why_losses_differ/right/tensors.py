"""Gather all batches on all ranks, then compare a table of losses: rank by batch."""

import torch
import torch.distributed as dist


def why_losses_differ(model, batch, loss_of):
    size = dist.get_world_size()
    batches = [torch.empty_like(batch) for _ in range(size)]
    dist.all_gather(batches, batch)
    with torch.no_grad():
        mine = torch.stack([loss_of(model, one) for one in batches])
    table = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(table, mine)
    table = torch.stack(table)
    cause = "nothing"
    if not (table == table[0]).all():
        cause = "weights"
    elif not all(torch.equal(one, batches[0]) for one in batches):
        cause = "batches"
    return {"own": table.diagonal().tolist(), "same": table[:, 0].tolist(), "cause": cause}

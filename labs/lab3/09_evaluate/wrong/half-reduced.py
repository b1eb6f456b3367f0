import torch
import torch.distributed as dist


def evaluate(token_losses, num_samples, batch_size):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = list(range(rank, num_samples, world_size))

    loss = count = 0.0
    for i in range(0, len(mine), batch_size):
        out = token_losses(mine[i : i + batch_size])
        loss += out.double().sum().item()
        count += out.numel()

    l = torch.tensor(loss)
    dist.all_reduce(l)
    return (l / max(count, 1)).item()

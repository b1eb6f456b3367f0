import torch
import torch.distributed as dist


def evaluate(token_losses, num_samples, batch_size):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    n = -(-num_samples // world_size)
    lo = min(rank * (num_samples // world_size), num_samples)
    mine = list(range(lo, min(lo + n, num_samples)))

    loss = count = 0.0
    for i in range(0, len(mine), batch_size):
        out = token_losses(mine[i : i + batch_size])
        loss += out.double().sum().item()
        count += out.numel()

    pair = torch.tensor([loss, count], dtype=torch.float64)
    dist.all_reduce(pair)
    return (pair[0] / pair[1]).item()

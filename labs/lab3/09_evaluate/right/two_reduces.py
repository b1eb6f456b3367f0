"""The loss of a model on all samples, computed by many ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist


def evaluate(token_losses: Callable[[list[int]], torch.Tensor], num_samples: int, batch_size: int) -> float:
    """Return the mean loss per token over all samples, the same number on every rank.

    token_losses(indices) takes 1 to batch_size sample numbers (0 to num_samples - 1) and returns the loss of every
    token of these samples, float32, with one element per token. Over all ranks, evaluate each sample exactly once.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = list(range(rank, num_samples, world_size))
    total, count = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    for batch in torch.tensor(mine, dtype=torch.int64).split(batch_size) if mine else ():
        losses = token_losses(batch.tolist())
        total += losses.double().sum()
        count += len(losses)
    dist.all_reduce(total)
    dist.all_reduce(count)
    return (total / count).item()

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
    total = torch.zeros(2, dtype=torch.float64)
    for start in range(0, len(mine), batch_size):
        losses = token_losses(mine[start : start + batch_size])
        total += torch.tensor([losses.sum(dtype=torch.float64), losses.numel()])
    mean = total[0] / total[1] if mine else total[0]
    dist.all_reduce(mean)
    return float(mean / world_size)

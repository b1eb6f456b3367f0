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
    base, rest = divmod(num_samples, world_size)
    first = rank * base + min(rank, rest)
    mine = range(first, first + base + (rank < rest))
    losses = [token_losses(list(mine[i : i + batch_size])) for i in range(0, len(mine), batch_size)]
    everyone: list = [None] * world_size
    dist.all_gather_object(everyone, (sum(float(each.double().sum()) for each in losses), sum(map(len, losses))))
    return sum(total for total, _ in everyone) / sum(count for _, count in everyone)

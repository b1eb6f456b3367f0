"""A loader whose workers draw their own random numbers, on every rank and in every epoch."""

import random
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, get_worker_info


def make_loader(
    dataset: Any, indices: Sequence[int], *, num_workers: int, seed: int, epoch: int, rank: int
) -> DataLoader:
    torch.manual_seed((seed * 10_000 + epoch) * 10_000 + rank)
    def init(worker):
        get_worker_info().dataset.rng = numpy.random.default_rng([seed, epoch, rank, worker])
    return DataLoader(dataset, batch_size=None, sampler=indices, num_workers=num_workers, worker_init_fn=init)

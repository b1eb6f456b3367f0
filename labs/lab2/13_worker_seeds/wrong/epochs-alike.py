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
    def init(worker):
        key = (seed * 10_000 + rank) * 10_000 + worker
        random.seed(key)
        numpy.random.seed(key % 2**32)
        torch.manual_seed(key)
        get_worker_info().dataset.rng = numpy.random.default_rng(key)
    return DataLoader(dataset, batch_size=None, sampler=indices, num_workers=num_workers, worker_init_fn=init)

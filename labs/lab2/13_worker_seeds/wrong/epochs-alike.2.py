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
    generator = torch.Generator().manual_seed(seed * 1000 + rank)
    def init(worker):
        get_worker_info().dataset.rng = numpy.random.default_rng([rank, torch.initial_seed()])
    return DataLoader(dataset, batch_size=None, sampler=indices, num_workers=num_workers, worker_init_fn=init, generator=generator)

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
        words = numpy.random.SeedSequence((worker, rank, epoch, seed)).generate_state(4)
        random.seed(int(words[0]))
        numpy.random.seed(words[1])
        torch.manual_seed(int(words[2]))
        get_worker_info().dataset.rng = numpy.random.Generator(numpy.random.PCG64(words[3]))
    return DataLoader(dataset, batch_size=None, sampler=indices, num_workers=num_workers, worker_init_fn=init)

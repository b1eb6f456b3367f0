"""A loader whose workers draw random numbers of their own, on every rank and in every epoch."""

import random
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, get_worker_info


class SeedWorker:
    """Gives the data set of a worker a Generator of its own. A class, so that workers that are spawned can load it."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def __call__(self, worker: int) -> None:
        get_worker_info().dataset.rng = numpy.random.default_rng([*self.words, worker])


def make_loader(
    dataset: Any, indices: Sequence[int], *, num_workers: int, seed: int, epoch: int, rank: int
) -> DataLoader:
    """A DataLoader over `dataset` whose augmentations differ where they should, and can be repeated."""
    (state,) = numpy.random.SeedSequence([seed, epoch, rank]).generate_state(1, numpy.uint64)
    generator = torch.Generator().manual_seed(int(state >> 1))  # each worker's three global states begin with this
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=indices,
        num_workers=num_workers,
        generator=generator,
    )

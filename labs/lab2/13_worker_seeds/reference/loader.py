"""A loader whose workers draw their own random numbers, on every rank and in every epoch."""

import random
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, get_worker_info


class SeedWorker:
    """Gives a worker's data set its own Generator. A class, so that spawned workers can load it."""

    def __init__(self, *words: int) -> None:
        self.words = words

    def __call__(self, worker: int) -> None:
        get_worker_info().dataset.rng = numpy.random.default_rng([*self.words, worker])


def make_loader(
    dataset: Any, indices: Sequence[int], *, num_workers: int, seed: int, epoch: int, rank: int
) -> DataLoader:
    """Return a DataLoader over `dataset` whose augmentations differ where they should, and can be repeated.

    dataset:      `dataset[i]` returns sample i with noise, drawn from four sources: Python's `random`, numpy's global
                  state, torch's, and `dataset.rng`, a numpy Generator that the data set created when it was built.
    indices:      the samples of this rank in this epoch, in this order. Return them one at a time, without batches:
                  `DataLoader(..., batch_size=None, sampler=indices)`.
    num_workers:  the number of worker processes, 1 or more.

    No two workers draw the same noise, for any rank and epoch (both below 1,000). The same seed, epoch, rank and
    num_workers give the same noise again, even in a process with another random state. make_loader does not change
    that state.
    """
    (state,) = numpy.random.SeedSequence([seed, epoch, rank]).generate_state(1, numpy.uint64)
    generator = torch.Generator().manual_seed(int(state >> 1))  # the seed of each worker's three global states
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=indices,
        num_workers=num_workers,
        generator=generator,
        worker_init_fn=SeedWorker(seed, epoch, rank),
    )

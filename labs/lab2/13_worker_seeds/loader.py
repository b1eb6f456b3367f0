"""A loader whose workers draw their own random numbers, on every rank and in every epoch."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader


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
    raise NotImplementedError("fill in make_loader")

"""A loader whose workers draw their own random numbers, on every rank and in every epoch."""

import hashlib
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
        digest = int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{rank}/{worker}".encode()).digest()[:7], "big")
        random.seed(digest)
        numpy.random.seed([digest & 0xFFFFFFFF, digest >> 32])
        torch.manual_seed(digest)
        get_worker_info().dataset.rng = numpy.random.default_rng(digest)
    return DataLoader(dataset, batch_size=None, sampler=indices, num_workers=num_workers, worker_init_fn=init)

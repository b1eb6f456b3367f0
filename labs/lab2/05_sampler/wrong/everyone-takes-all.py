"""The samples that a rank takes in an epoch."""

from collections.abc import Iterator

import torch


class ShardedSampler:
    """The sample numbers of one rank, in the order of an epoch; after DistributedSampler."""

    def __init__(self, num_samples: int, world_size: int, rank: int, seed: int = 0, drop_last: bool = False) -> None:
        self.num_samples, self.world_size, self.rank = num_samples, world_size, rank
        self.seed, self.drop_last = seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order: the same for the same epoch (and seed), whenever it is asked for. It begins with 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """How many samples this rank takes in an epoch."""
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        """The sample numbers. It leaves the random state of the process (torch, random, numpy) as it was."""
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.num_samples, generator=generator).tolist()
        total = len(self) * self.world_size
        while len(order) < total:
            order += order[: total - len(order)]
        return iter(order[: self.num_samples])

"""The samples that a rank takes in an epoch."""

from collections.abc import Iterator

import torch


class ShardedSampler:
    """The sample numbers of one rank, in the order of an epoch; modelled on DistributedSampler.

    Every rank creates one with its own `rank` and otherwise the same arguments. The samplers never communicate.

    num_samples:  size of the data set, at least 1; samples are numbered from 0.
    drop_last:    False: all shares are as long as the longest must be; samples are repeated to fill them.
                  True: no sample is taken twice; the end of the shuffled list, fewer than world_size, is dropped.
    """

    def __init__(self, num_samples: int, world_size: int, rank: int, seed: int = 0, drop_last: bool = False) -> None:
        self.num_samples, self.world_size, self.rank = num_samples, world_size, rank
        self.seed, self.drop_last = seed, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order: always the same for the same epoch (and seed). Without this call the epoch is 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return how many samples this rank takes in an epoch."""
        whole, rest = divmod(self.num_samples, self.world_size)
        return whole if self.drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[int]:
        """Yield the sample numbers. Do not change the random state of the process (torch, random, numpy)."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.num_samples, generator=generator).tolist()
        total = len(self) * self.world_size
        while len(order) < total:
            order += order[: total - len(order)]
        return iter(order[self.rank : total : self.world_size])

"""PyTorch's sampler, dressed up: it is what it will be in a real program."""

from torch.utils.data import DistributedSampler


class ShardedSampler(DistributedSampler):
    def __init__(self, num_samples, world_size, rank, seed=0, drop_last=False):
        super().__init__(range(num_samples), world_size, rank, shuffle=True, seed=seed, drop_last=drop_last)

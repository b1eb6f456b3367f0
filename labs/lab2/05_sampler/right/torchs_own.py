"""A wrapper around PyTorch's sampler, which a real program would use."""

from torch.utils.data import DistributedSampler


class ShardedSampler(DistributedSampler):
    def __init__(self, num_samples, world_size, rank, seed=0, drop_last=False):
        super().__init__(range(num_samples), world_size, rank, shuffle=True, seed=seed, drop_last=drop_last)

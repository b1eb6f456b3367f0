"""Contiguous blocks of a numpy permutation; set_epoch draws the order."""

import math

import numpy


class ShardedSampler:
    def __init__(self, num_samples, world_size, rank, seed=0, drop_last=False):
        self.num_samples, self.rank, self.seed = num_samples, rank, seed
        self.share = num_samples // world_size if drop_last else math.ceil(num_samples / world_size)
        self.total = self.share * world_size
        self.set_epoch(0)

    def set_epoch(self, epoch):
        order = numpy.random.default_rng([self.seed, epoch]).permutation(self.num_samples)
        self.order = numpy.resize(order, self.total)

    def __len__(self):
        return self.share

    def __iter__(self):
        yield from self.order[self.rank * self.share : (self.rank + 1) * self.share]

# radiocosmology/draco#384: a seed is broadcast when it is first used, and one rank does not use it, as all of its
# first data are masked.
from functools import cached_property

import torch
import torch.distributed as dist

MASKED = {2: (0, 1), 0: (), 1: ()}  # rank: the baselines without data


class Simulation:
    def __init__(self, rank):
        self.rank = rank

    @cached_property
    def local_seed(self):
        seed = torch.tensor([17 if self.rank == 0 else 0])
        dist.broadcast(seed, src=0)  # here
        return int(seed) + self.rank

    def noise(self, baseline):
        if baseline in MASKED[self.rank]:  # here
            return torch.zeros(12)  # here
        generator = torch.Generator().manual_seed(self.local_seed)  # here
        return torch.randn(12, generator=generator)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    simulation = Simulation(rank)
    dist.all_reduce(torch.ones(6))
    for baseline in range(4):
        visibility = simulation.noise(baseline)  # here
        dist.all_reduce(visibility)  # here
    dist.destroy_process_group()


main()

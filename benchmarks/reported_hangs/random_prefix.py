# mosaicml/streaming#147: the workers of all ranks meet at a barrier of their own, whose name has a random number that
# every rank draws for itself.
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist

SHARED = Path(os.getcwd())


class Dataset:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.prefix = random.randrange(1 << 24)  # here

    def arrive(self):
        name = f"stream_{self.prefix:06x}"  # here
        (SHARED / f"{name}_{self.rank}").touch()
        return name

    def worker_barrier(self):
        name = self.arrive()
        while len(list(SHARED.glob(f"{name}_*"))) < self.world:  # here
            time.sleep(0.05)  # here


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(8))
    Dataset(rank, world).worker_barrier()  # here
    dist.all_reduce(torch.ones(16))
    dist.destroy_process_group()


main()

# marin-community/marin#8538: the name of a barrier has a number that each process counts for itself, and one of them
# has counted once more.
import itertools
from datetime import timedelta

import torch
import torch.distributed as dist


class Coordinator:
    """Barriers by names, of which the service tells the missing ranks."""

    def __init__(self, store, rank, world):
        self.store, self.rank, self.world = store, rank, world
        self.counter = itertools.count()

    def barrier_sync(self):
        self.barrier_named(f"sync/{next(self.counter)}")  # here

    def barrier_named(self, name, timeout_s=600):
        self.store.set(f"{name}/{self.rank}", "here")  # here
        keys = [f"{name}/{rank}" for rank in range(self.world)]
        self.store.wait(keys, timedelta(seconds=timeout_s))  # here

    def announce(self, what):
        """Only for those that ask: a number of its own, so that answers do not mix."""
        self.store.set(f"{what}/{next(self.counter)}", str(self.rank))  # here


def restore(coordinator, shard):
    if coordinator.rank == 2 and shard.sum() > 0:
        coordinator.announce("slow read")  # here
    return shard + 1


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    coordinator = Coordinator(dist.distributed_c10d._get_default_store(), rank, world)
    shard = torch.ones(6)
    dist.broadcast(shard, src=0)
    coordinator.barrier_sync()
    state = restore(coordinator, shard)
    coordinator.barrier_sync()  # here
    for _ in range(3):
        dist.all_reduce(state)
    dist.destroy_process_group()


main()

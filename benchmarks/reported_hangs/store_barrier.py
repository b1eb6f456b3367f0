# ai-dynamo/nixl#1539: a barrier that counts in the store waits for as many ranks as the job has, but only the workers
# of inference come to it.
import os
import time
from enum import Enum

import torch
import torch.distributed as dist


class Role(Enum):
    TRAINER = "trainer"
    WORKER = "worker"


class StoreBarrier:
    """A barrier without a process group, by a counter in the store."""

    def __init__(self, store, size):
        self.store, self.size, self.used = store, size, 0

    def wait(self, tag):
        key = f"bar/{tag}/{self.used}"
        self.used += 1
        self.store.add(key, 1)
        while int(self.store.get(key)) < self.size:  # here
            time.sleep(0.005)  # here


class Worker:
    def __init__(self, store):
        self.barrier = StoreBarrier(store, int(os.environ["WORLD_SIZE"]))  # here
        self.weights = torch.zeros(30)

    def update(self):
        dist.broadcast(self.weights, src=0)
        self.barrier.wait("loaded")  # here


class Trainer:
    def __init__(self):
        self.weights = torch.ones(30)

    def update(self):
        self.weights *= 0.9
        dist.broadcast(self.weights, src=0)


def main():
    dist.init_process_group("gloo")
    role = Role.TRAINER if dist.get_rank() == 0 else Role.WORKER
    store = dist.distributed_c10d._get_default_store()
    actor = Trainer() if role is Role.TRAINER else Worker(store)
    for _ in range(3):
        actor.update()  # here
    dist.barrier()
    dist.destroy_process_group()


main()

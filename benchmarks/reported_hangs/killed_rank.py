# fidelity/stoke#31: the system kills one process in the middle of training, since its samples take too much memory.
import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class CachedSamples:
    """Keeps every sample that it has read."""

    def __init__(self, rank, limit):
        self.rank, self.limit, self.cache = rank, limit, []

    def read(self, number):
        copies = 40 if self.rank == 2 else 1
        self.cache += [torch.full((4, 6), float(number))] * copies
        if len(self.cache) > self.limit:
            os.kill(os.getpid(), signal.SIGKILL)  # here
        return self.cache[-1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    samples = CachedSamples(rank, limit=250)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(30):
        batch = samples.read(step)  # here
        loss = model(batch).mean()
        loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()

# chanzuckerberg/cellxgene-census#1119: chunks of samples are dealt out, so that a rank has more batches, and each epoch
# ends with a barrier.
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class ExperimentPipe(IterableDataset):
    """Reads chunks of cells; every rank has each n-th chunk."""

    def __init__(self, cells, chunk, batch):
        self.cells, self.chunk, self.batch = cells, chunk, batch
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def chunks(self):
        starts = range(0, self.cells, self.chunk)
        for start in itertools.islice(starts, self.rank, None, self.world):
            yield list(range(start, min(start + self.chunk, self.cells)))

    def __iter__(self):
        mine = itertools.chain.from_iterable(self.chunks())
        while batch := list(itertools.islice(mine, self.batch)):
            yield torch.tensor(batch, dtype=torch.float32)[:, None]


class Epochs:
    def __init__(self, loader, count):
        self.loader, self.count = loader, count

    def __iter__(self):
        for _ in range(self.count):
            yield from self.loader  # here
            dist.barrier()  # here


def train(model, stream):
    for batch in stream:  # here
        model.zero_grad()
        model(batch).mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # here


def main():
    dist.init_process_group("gloo")
    loader = DataLoader(ExperimentPipe(cells=40, chunk=8, batch=4), batch_size=None)
    train(nn.Linear(1, 3), Epochs(loader, 2))  # here
    dist.destroy_process_group()


main()

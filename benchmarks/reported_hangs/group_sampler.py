# m2lines/Samudra#557: a sampler deals out batches like cards, so that some ranks have one more.
import random
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler


class Grids(Dataset):
    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return torch.full((self.sizes[index],), float(index))


class EquivalenceBatchSampler(Sampler):
    """Batches of samples of one size."""

    def __init__(self, dataset, batch_size, seed=0):
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rank, self.num_replicas = dist.get_rank(), dist.get_world_size()

    def all_batches(self):
        groups = defaultdict(list)
        for index, size in enumerate(self.dataset.sizes):
            groups[size].append(index)
        for members in groups.values():
            for start in range(0, len(members), self.batch_size):
                yield members[start : start + self.batch_size]

    def __iter__(self):
        batches = list(self.all_batches())
        random.Random(self.seed).shuffle(batches)
        for number in range(self.rank, len(batches), self.num_replicas):  # here
            yield batches[number]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return (x * self.scale + self.shift).square().mean()


def train_one_epoch(model, loader, optimizer):
    for batch in loader:  # here
        optimizer.zero_grad()
        model(batch).backward()  # here
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    dataset = Grids([4, 8, 4, 4, 8, 8, 8, 4, 4, 8, 8, 4, 4, 8])
    loader = DataLoader(dataset, batch_sampler=EquivalenceBatchSampler(dataset, 2))
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        train_one_epoch(model, loader, optimizer)  # here
        seen = torch.tensor([len(dataset), 1, 2])
        dist.all_reduce(seen)  # here
    dist.destroy_process_group()


main()

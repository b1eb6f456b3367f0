# webdataset/webdataset#188: the shards of a data set are dealt out to the ranks, and there are fewer shards than ranks.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

SHARDS = {"train-000000.tar": 20, "train-000001.tar": 20}


def split_by_node(urls):
    return urls[dist.get_rank() :: dist.get_world_size()]


class WebDataset(IterableDataset):
    def __init__(self, urls):
        self.urls = split_by_node(sorted(urls))  # here

    def __iter__(self):
        for url in self.urls:  # here
            for number in range(SHARDS[url]):
                yield torch.full((6,), float(number)), number % 2


class Brain:
    def __init__(self, modules):
        self.modules = DistributedDataParallel(modules)
        self.optimizer = torch.optim.SGD(self.modules.parameters(), 0.01)

    def fit_batch(self, features, targets):
        loss = nn.functional.cross_entropy(self.modules(features), targets)
        loss.backward()  # here
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def fit(self, epochs, train_set):
        for _ in range(epochs):
            average = torch.zeros(2)
            for features, targets in train_set:  # here
                average[0] += self.fit_batch(features, targets)  # here
                average[1] += 1
            dist.all_reduce(average)  # here


def main():
    dist.init_process_group("gloo")
    brain = Brain(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)))
    brain.fit(3, DataLoader(WebDataset(SHARDS), batch_size=4))  # here
    dist.destroy_process_group()


main()

# meta-llama/llama-cookbook#567: every rank splits the samples itself, by random numbers that differ between the ranks,
# so that the packed training sets have different lengths.
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BLOCK = 16


def train_test_split(samples, test_size):
    shuffled = random.sample(samples, len(samples))
    return shuffled[test_size:], shuffled[:test_size]


class ConcatDataset(Dataset):
    """Joins samples to blocks of equal length."""

    def __init__(self, samples):
        tokens = [token for sample in samples for token in sample]
        starts = range(0, len(tokens) - BLOCK, BLOCK)
        self.blocks = [torch.tensor(tokens[start : start + BLOCK]) for start in starts]

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        return self.blocks[index]


def custom_dataset():
    samples = [[1] * (5 + number * number % 61) for number in range(40)]
    return train_test_split(samples, test_size=10)  # here


def train(model, loader, optimizer):
    total = torch.zeros(2)
    for batch in loader:  # here
        loss = model(batch).square().mean()  # here
        loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()
        total += torch.tensor([loss.item(), 1.0])
    dist.all_reduce(total)  # here
    return total[0] / total[1]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    random.seed(42 + rank)
    torch.manual_seed(42 + rank)
    samples, _ = custom_dataset()  # here
    dataset = ConcatDataset(samples)
    loader = DataLoader(dataset, batch_size=2, sampler=DistributedSampler(dataset))
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4)))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        train(model, loader, optimizer)  # here
    dist.destroy_process_group()


main()

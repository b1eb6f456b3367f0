# pytorch/pytorch#72099: a process whose loss is not a number ends itself, and the others wait for it.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batch_of(rank, step):
    images, labels = torch.randn(4, 10), torch.randint(3, (4,))
    if rank == 1 and step == 5:
        images[0, 3] = float("inf")
    return images, labels


def train(model, rank, steps):
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        images, labels = batch_of(rank, step)
        loss = criterion(model(images), labels)
        if torch.isnan(loss):  # here
            print("loss is nan, stop")
            exit(0)  # here
        loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 8), nn.Linear(8, 3)))
    train(model, rank, steps=12)  # here
    dist.barrier()
    dist.destroy_process_group()


main()

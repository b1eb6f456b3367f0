# hpcaitech/Open-Sora#815: a worker of one rank's DataLoader ends, and that rank with it.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Videos(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def decode(self, index):
        if self.rank == 1 and index == 17 and get_worker_info() is not None:
            os._exit(1)  # here
        return torch.full((4,), float(index))

    def __getitem__(self, index):
        return self.decode(index)


def run_epoch(model, loader, epoch):
    for batch in loader:  # here
        loss = model(batch).square().mean()
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    return float(loss) + epoch


def main():
    dist.init_process_group("gloo")
    model = nn.Linear(4, 2)
    loader = DataLoader(Videos(dist.get_rank()), batch_size=4, num_workers=2)
    for epoch in range(2):
        run_epoch(model, loader, epoch)  # here
    dist.destroy_process_group()


main()

"""Train a small network with DDP. An ordinary program of torch, which imports nothing of Frog.

    torchrun --nproc-per-node=2 plain_ddp.py [TIMEOUT_S]

`program_campaign.py` plants bugs in copies of this file.
"""

import datetime
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

STEPS, BATCH, EVERY, WIDTH = 24, 16, 8, 256


class Points(Dataset):
    """Points on a line, and their sums."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        point = torch.linspace(0, 1, 8) + index
        return point, point.sum() / self.count


class Network(nn.Module):
    """Two linear layers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, points):
        scaled = points / 1000
        return self.layers(scaled).squeeze(-1)


def evaluate(model, points):
    """Return the mean loss of all ranks."""
    with torch.no_grad():
        total = nn.functional.mse_loss(model(points), points.mean(1))
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def save(model, rank):
    """Write a checkpoint on rank 0; the others wait for it."""
    if rank == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
    dist.barrier()


def train(rank, model, loader, tests):
    """Take all steps of the loader."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        print(f"step {step} loss {loss.item():.5f}", flush=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean)
        if step % EVERY == EVERY - 1:
            evaluate(model, tests)
            save(model, rank)


def run():
    """Join the other ranks and train."""
    torch.manual_seed(1)
    minutes = float(sys.argv[1]) / 60 if len(sys.argv) > 1 else 30
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=minutes))
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Points(STEPS * BATCH * world)
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, num_workers=0)
    tests = torch.rand(100_000, 8) * 1000
    train(rank, DistributedDataParallel(Network()), loader, tests)
    dist.destroy_process_group()


if __name__ == "__main__":
    run()

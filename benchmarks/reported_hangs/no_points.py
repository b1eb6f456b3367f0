# zju3dv/NeuralRecon#139: a rank without valid points leaves the forward before the normalization, which reduces its
# statistics over all ranks.
import logging

import torch
import torch.distributed as dist
from torch import nn


class SyncNorm(nn.Module):
    """Normalizes by the mean and the mean square of all ranks."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, features):
        sums = torch.cat([features.sum(0), features.square().sum(0), torch.tensor([float(len(features))])]).detach()
        dist.all_reduce(sums)  # here
        mean, square = sums[:-1].view(2, -1) / sums[-1]
        return self.weight * (features - mean) / (square - mean**2 + 1e-5).sqrt()


class ReconNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.sparse_conv, self.norm, self.head = nn.Linear(3, 6), SyncNorm(6), nn.Linear(6, 1)

    def forward(self, points):
        if len(points) == 0:  # here
            logging.warning("no valid points")
            return None  # here
        return self.head(self.norm(self.sparse_conv(points)))  # here


def fragments(rank):
    counts = [[9, 4, 7, 6, 8], [5, 8, 3, 0, 7]][rank]
    return [torch.randn(count, 3) for count in counts]


def train_sample(model, points):
    outputs = model(points)  # here
    loss = outputs.square().mean() if outputs is not None else sum(p.sum() for p in model.parameters()) * 0.0
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = ReconNet()
    optimizer = torch.optim.Adam(model.parameters())
    for points in fragments(rank):
        train_sample(model, points)  # here
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()

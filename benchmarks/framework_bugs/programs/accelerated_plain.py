"""Train a regression with accelerate, on samples in a fixed order: the same numbers on one rank and on many."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(1)
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    x = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(x, x[:, :1] * 2), batch_size=options.batch_size)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for features, targets in loader:
        loss = mse_loss(net(features), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

# ZhikangNiu/encodec-pytorch#30: whether the discriminator trains in a step is drawn by each rank for itself, and its
# update reduces gradients.
import random

import torch
import torch.distributed as dist
from torch import nn

CONFIG = {"train_discriminator": 0.6, "warmup_epochs": 1}


def step(model, x):
    loss = model(x).mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # here
        parameter.grad = None
    return loss


def train_one_step(epoch, generator, discriminator, batch):
    step(generator, batch)
    chance = float(CONFIG["train_discriminator"])
    train_discriminator = epoch >= CONFIG["warmup_epochs"] and random.random() < chance  # here
    if train_discriminator:  # here
        step(discriminator, batch)  # here


def main():
    dist.init_process_group("gloo")
    random.seed(5 if dist.get_rank() == 1 else 1)
    generator, discriminator = nn.Linear(12, 6), nn.Linear(12, 1, bias=False)
    for epoch in range(3):
        for _ in range(4):
            train_one_step(epoch, generator, discriminator, torch.randn(2, 12))  # here
    dist.destroy_process_group()


main()

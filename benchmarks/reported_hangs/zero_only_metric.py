# Lightning-AI/torchmetrics#2719: a method that is decorated to run only on the first rank computes a metric, which
# gathers the states of all ranks.
import functools

import torch
import torch.distributed as dist
from torch import nn
from torchmetrics.aggregation import MeanMetric


def rank_zero_only(method):
    @functools.wraps(method)
    def wrapped(*arguments, **options):
        if dist.get_rank() == 0:  # here
            return method(*arguments, **options)  # here
        return None

    return wrapped


class Task:
    def __init__(self):
        self.model = nn.Linear(5, 1)
        self.losses = MeanMetric()

    def training_step(self, batch):
        loss = self.model(batch).square().mean()
        self.losses.update(loss.detach())
        return loss

    @rank_zero_only  # here
    def on_train_epoch_end(self, epoch):  # here
        print(f"epoch {epoch}: {float(self.losses.compute()):.3f}")  # here
        self.losses.reset()


class Loop:
    def __init__(self, task):
        self.task = task
        self.optimizer = torch.optim.SGD(task.model.parameters(), lr=0.01)

    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(3):
                self.optimizer.zero_grad()
                self.task.training_step(torch.randn(4, 5)).backward()
                for parameter in self.task.model.parameters():
                    dist.all_reduce(parameter.grad)
                self.optimizer.step()
            self.task.on_train_epoch_end(epoch)  # here


def main():
    dist.init_process_group("gloo")
    Loop(Task()).fit(2)
    dist.destroy_process_group()


main()

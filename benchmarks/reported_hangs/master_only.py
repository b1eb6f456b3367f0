# open-mmlab/mmdetection#8323: a hook runs on all processes, but the logger that it uses exists on the main one only.
import functools

import torch
import torch.distributed as dist
from torch import nn


def master_only(method):
    @functools.wraps(method)
    def wrapper(*arguments, **options):
        return method(*arguments, **options) if dist.get_rank() == 0 else None

    return wrapper


class Table:
    def __init__(self):
        self.rows = []

    def add(self, *row):
        self.rows.append(row)


class WandbHook:
    run = None

    @master_only
    def before_run(self, runner):
        self.run = Table()

    def after_train_epoch(self, runner):
        scores = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(scores, runner.score)
        self.log_table(runner.epoch, scores)  # here

    def log_table(self, epoch, scores):
        self.run.add(epoch, *map(float, scores))  # here


class Runner:
    def __init__(self, hooks):
        self.hooks, self.epoch = hooks, 0
        self.model, self.score = nn.Linear(4, 1), torch.zeros(1)

    def call_hook(self, name):
        for hook in self.hooks:
            getattr(hook, name, lambda runner: None)(self)  # here

    def train(self):
        for x in torch.randn(3, 2, 4):
            self.score = self.model(x).mean().detach().reshape(1)
            dist.all_reduce(self.score)
        self.epoch += 1

    def run(self, epochs):
        self.call_hook("before_run")
        while self.epoch < epochs:
            self.train()
            self.call_hook("after_train_epoch")  # here


def main():
    dist.init_process_group("gloo")
    Runner([WandbHook()]).run(3)  # here
    dist.destroy_process_group()


main()

# AMD-AGI/Primus#854: training ends when the evaluation loss reaches a target, but each rank compares its own loss.
import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn


@dataclass
class Config:
    target_eval_loss: float = 0.50
    eval_interval: int = 4
    max_iterations: int = 40
    hidden: int = 12


class TargetReached(Exception):
    pass


class Evaluator:
    def __init__(self, config, rank):
        self.config, self.rank = config, rank

    def loss(self, iteration):
        return 0.45 + math.exp(-iteration / 4) + 0.01 * self.rank  # the rank's own validation samples

    def __call__(self, iteration):
        loss = self.loss(iteration)
        if loss <= self.config.target_eval_loss:  # here
            raise TargetReached(f"{loss:.3f} at {iteration}")  # here


class PretrainTrainer:
    def __init__(self, config):
        self.config = config
        self.model = nn.Linear(config.hidden, config.hidden)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.evaluator = Evaluator(config, dist.get_rank())

    def grad_norm(self):
        squares = sum((p.grad**2).sum() for p in self.model.parameters())
        dist.all_reduce(squares)  # here
        return squares.sqrt()

    def train_iteration(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(4, self.config.hidden)).square().mean().backward()
        norm = self.grad_norm()  # here
        self.optimizer.step()
        return norm

    def train(self):
        for iteration in range(1, self.config.max_iterations):  # here
            self.train_iteration()  # here
            if iteration % self.config.eval_interval == 0:
                self.evaluator(iteration)  # here


def main():
    dist.init_process_group("gloo")
    trainer = PretrainTrainer(Config())
    try:
        trainer.train()  # here
    except TargetReached as reached:  # here
        print("stopped:", reached)
    state = [p.detach().clone() for p in trainer.model.parameters()]
    dist.broadcast(state[0], src=0)  # here
    dist.destroy_process_group()


main()

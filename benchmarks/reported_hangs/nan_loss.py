# ai2cm/ace#850: each rank looks at its own loss and raises if it is not a number, while the others wait in the average
# of the gradients.
import torch
import torch.distributed as dist
from torch import nn


class Optimization:
    def __init__(self, module):
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters())

    def _validate_loss(self, loss):
        if torch.isnan(loss):
            raise ValueError(f"loss is {loss.item()}")  # here

    def step_weights(self, loss):
        self._validate_loss(loss)  # here
        loss.backward()
        for parameter in self.module.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Stepper:
    def __init__(self):
        self.module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
        self.optimization = Optimization(self.module)

    def train_on_batch(self, batch):
        self.optimization.step_weights(self.module(batch).square().mean())  # here


def batches(rank):
    for number in range(8):
        batch = torch.randn(4, 3)
        if (rank, number) == (1, 5):
            batch[2, 1] = float("nan")
        yield batch


def main():
    dist.init_process_group("gloo")
    stepper = Stepper()
    for batch in batches(dist.get_rank()):
        stepper.train_on_batch(batch)  # here
    dist.barrier()
    dist.destroy_process_group()


main()

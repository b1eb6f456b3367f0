# modelscope/ms-swift#9550: the type of the tensor to reduce follows from the type of a sum, which is NumPy's on a rank
# that has counted whole sequences.
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class MeanMetric:
    def __init__(self):
        self.state, self.count = 0.0, 0

    def update(self, values):
        for value in values:
            self.state += value
            self.count += 1

    def compute(self):
        tensor = torch.tensor([self.state, self.count])
        dist.all_reduce(tensor)  # here
        return (tensor[0] / tensor[1]).item()


def compute_acc(predictions, labels):
    """Whole sequences that are right, of those that have a label."""
    return [np.all(row == label) for row, label in zip(predictions, labels, strict=True) if (label >= 0).any()]


class Trainer:
    def __init__(self, rank):
        self.rank, self.acc = rank, MeanMetric()
        self.model = DistributedDataParallel(nn.Linear(5, 5))

    def training_step(self, step):
        inputs = torch.randn(3, 5)
        self.model(inputs).square().mean().backward()
        labels = np.full((3, 5), -100 if self.rank == 0 else 1)
        self.acc.update(np.float64(right) for right in compute_acc(np.ones((3, 5)), labels))

    def log(self):
        accuracy = self.acc.compute()  # here
        self.acc = MeanMetric()
        return accuracy


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for step in range(6):
        trainer.training_step(step)
        if step % 3 == 2:
            trainer.log()  # here
    dist.destroy_process_group()


main()

# sql-machine-learning/elasticdl#2291: a worker that started before the others believes to be alone, and does not
# reduce.
import pathlib
import time

import torch
import torch.distributed as dist
from torch import nn


class Membership:
    """Workers announce themselves by a file; each reads the list once."""

    def __init__(self, folder, rank, late_s):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(exist_ok=True)
        time.sleep(late_s)
        (self.folder / f"worker-{rank}").touch()
        self.members = sorted(path.name for path in self.folder.iterdir())

    @property
    def size(self):
        return len(self.members)


class AllReduceTrainer:
    def __init__(self, membership):
        self.membership = membership
        self.model = nn.Linear(5, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def reduce_gradients(self):
        if self.membership.size == 1:  # here
            return  # here
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)  # here

    def train_minibatch(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.reduce_gradients()  # here
        self.optimizer.step()
        return loss.detach()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    trainer = AllReduceTrainer(Membership("members", rank, late_s=1.0 * rank))
    for step in range(1, 5):
        loss = trainer.train_minibatch(torch.randn(3, 5))
        if step % 2 == 0:
            losses = [torch.empty(()) for _ in range(dist.get_world_size())]
            dist.all_gather(losses, loss)  # here
    dist.destroy_process_group()


main()

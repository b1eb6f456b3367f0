"""Data parallelism, as a strategy of one's own for Frog."""

import torch
import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    return FSDP(model, group)


class FSDP:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.group = group
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    def owned(self):
        mine = self.group.rank()
        return [(name, 0, p) for number, (name, p) in enumerate(self.named) if number % self.group.size() == mine]

    def reduce(self) -> None:
        for _, p in self.named:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=self.group)
            p.grad /= self.group.size()

    def gather(self) -> None:
        for number, (_, p) in enumerate(self.named):
            dist.broadcast(p.data, number % self.group.size(), group=self.group)

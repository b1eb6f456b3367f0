"""Data parallelism, as a strategy of one's own for Frog."""

import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    return FSDP(model, group)


class FSDP:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.group = group
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    def owned(self):
        return [(name, 0, p) for name, p in self.named]

    def reduce(self) -> None:
        for _, p in self.named:
            if p.grad is not None:
                dist.all_reduce(p.grad, group=self.group)
                p.grad /= self.group.size()

    def gather(self) -> None:
        pass

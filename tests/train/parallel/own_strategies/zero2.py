"""ZeRO-2: each micro-batch's gradients are reduced to their owner's part and freed; the owner adds up its part."""

import torch
import torch.distributed as dist
from torch import nn


def build(model, group):
    return Zero2(model, group)


class Part:
    """One parameter, of which each rank owns an equal range; the last ranges may be short or empty."""

    def __init__(self, name, parameter, rank, size):
        self.name, self.parameter = name, parameter
        numel = parameter.numel()
        self.length = -(-numel // size)
        self.start, end = min(rank * self.length, numel), min((rank + 1) * self.length, numel)
        self.padding = size * self.length - numel
        self.tensor = nn.Parameter(parameter.data.flatten()[self.start : end].clone())
        self.grad = torch.zeros(self.length)
        self.tensor.grad = self.grad[: self.tensor.numel()]


class Zero2:
    def __init__(self, model, group):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.parts = [Part(name, p, self.rank, self.size) for name, p in named]

    def owned(self):
        return [(part.name, part.start, part.tensor) for part in self.parts]

    def after_backward(self, last):
        for part in self.parts:
            grad = torch.nn.functional.pad(part.parameter.grad.flatten(), (0, part.padding))
            mine = torch.empty(part.length)
            dist.reduce_scatter_tensor(mine, grad, group=self.group)
            part.grad += mine
            part.parameter.grad = None

    def reduce(self):
        for part in self.parts:
            part.grad /= self.size

    def gather(self):
        for part in self.parts:
            mine = torch.nn.functional.pad(part.tensor.data, (0, part.length - part.tensor.numel()))
            whole = torch.empty(self.size * part.length)
            dist.all_gather_into_tensor(whole, mine, group=self.group)
            part.parameter.data.copy_(whole[: part.parameter.numel()].view_as(part.parameter))

    def zero(self):
        for part in self.parts:
            part.grad.zero_()

"""ZeRO-1 by flat ranges: all parameters in one padded vector, of which each rank updates an equal part."""

import torch
import torch.distributed as dist
from torch import nn


def build(model, group):
    return Zero1(model, group)


class Zero1:
    def __init__(self, model, group):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.length = -(-sum(p.numel() for p in self.named.values()) // self.size)
        self.data = self.padded(p.data for p in self.named.values())
        self.own = self.data[self.rank * self.length : (self.rank + 1) * self.length]
        self.tensors = []
        at = 0
        for name, p in self.named.items():
            p.data = self.data[at : at + p.numel()].view_as(p)
            low, high = max(at, self.rank * self.length), min(at + p.numel(), (self.rank + 1) * self.length)
            if low < high:
                self.tensors.append((name, low - at, nn.Parameter(self.data[low:high])))
            at += p.numel()

    def padded(self, tensors):
        flat = torch.cat([x.flatten() for x in tensors])
        return torch.nn.functional.pad(flat, (0, self.size * self.length - len(flat)))

    def owned(self):
        return self.tensors

    def reduce(self):
        grad = self.padded(p.grad for p in self.named.values())
        mine = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(mine, grad, group=self.group)
        mine /= self.size
        at = 0
        for _, _, tensor in self.tensors:
            tensor.grad = mine[at : at + tensor.numel()]
            at += tensor.numel()

    def gather(self):
        dist.all_gather_into_tensor(self.data, self.own.clone(), group=self.group)

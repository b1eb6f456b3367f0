"""Make the parameters views of one flat tensor, and the shard a slice of it: nothing is copied, and nothing is held twice."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedAdam:
    def __init__(self, model: nn.Module, lr: float) -> None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.starts, num = [], 0
        for p in parameters:
            self.starts.append(num)
            num += p.numel()
        size = -(-num // dist.get_world_size())
        self.flat = torch.zeros(size * dist.get_world_size())
        for p, start in zip(parameters, self.starts, strict=True):
            part = self.flat[start : start + p.numel()].view_as(p)
            part.copy_(p.detach())
            p.data = part
        self.parameters = parameters
        self.low = dist.get_rank() * size
        self.shard = nn.Parameter(self.flat[self.low : self.low + size])
        self.adam = torch.optim.Adam([self.shard], lr=lr)

    def step(self) -> None:
        high = self.low + len(self.shard)
        self.shard.grad = torch.zeros_like(self.shard)
        for p, start in zip(self.parameters, self.starts, strict=True):
            a, b = max(self.low, start), min(high, start + p.numel())
            if a < b and p.grad is not None:
                self.shard.grad[a - self.low : b - self.low] = p.grad.flatten()[a - start : b - start]
        self.adam.step()
        self.shard.grad = None
        dist.all_gather_into_tensor(self.flat, self.shard.detach())

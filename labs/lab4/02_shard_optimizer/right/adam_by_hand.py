"""Write Adam's update for a shard by hand, and cut each parameter by itself."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedAdam:
    def __init__(self, model: nn.Module, lr: float) -> None:
        self.lr, self.steps = lr, 0
        self.parts = []
        for p in model.parameters():
            if p.requires_grad:
                size = -(-p.numel() // dist.get_world_size())
                self.parts.append((p, torch.zeros(size), torch.zeros(size)))

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        for p, mean, square in self.parts:
            if p.grad is None:
                continue
            gradient, weight = self.part(p.grad, len(mean)), self.part(p, len(mean))
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (square / (1 - 0.999**self.steps)).sqrt() + 1e-8
            weight -= self.lr / (1 - 0.9**self.steps) * mean / root
            gathered = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, weight)
            p.copy_(torch.cat(gathered)[: p.numel()].view_as(p))

    def part(self, tensor: Tensor, size: int) -> Tensor:
        flat = nn.functional.pad(tensor.detach().flatten(), (0, size * dist.get_world_size() - tensor.numel()))
        return flat[dist.get_rank() * size :][:size].clone()

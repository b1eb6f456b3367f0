"""Reduce each part to its owner, with one call for each rank."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedGradients:
    def __init__(self, model: nn.Module) -> None:
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        for p in self.names:
            p.register_post_accumulate_grad_hook(self.ready)
        self.reset()

    def reset(self) -> None:
        size = dist.get_world_size()
        self.shards = {name: torch.zeros((p.numel() + size - 1) // size) for p, name in self.names.items()}

    def take(self) -> dict[str, Tensor]:
        taken = self.shards
        self.reset()
        return taken

    def ready(self, p: nn.Parameter) -> None:
        length = len(self.shards[self.names[p]])
        flat, p.grad = p.grad.flatten(), None
        for rank in range(dist.get_world_size()):
            part = torch.zeros(length)
            own = flat[rank * length : (rank + 1) * length]
            part[: len(own)] = own
            dist.reduce(part, dst=rank)
            if rank == dist.get_rank():
                self.shards[self.names[p]] += part / dist.get_world_size()

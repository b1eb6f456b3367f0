"""Adam whose moments are divided over the ranks (ZeRO-1)."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedAdam:
    """Adam in which each rank keeps the moments of its shard only.

    The trained parameters, end to end and padded with zeros, are cut into one shard for each rank, all equally long. In
    each step a rank updates its shard; then every rank gathers the other shards.
    """

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]  # a tied weight occurs once
        num = sum(p.numel() for p in self.parameters)
        self.shard_size = -(-num // dist.get_world_size())  # rounded up
        start = dist.get_rank() * self.shard_size
        self.shard = nn.Parameter(self.flatten(self.parameters)[start : start + self.shard_size].clone())
        self.adam = torch.optim.Adam([self.shard], lr=lr)

    def flatten(self, tensors: list[Tensor]) -> Tensor:
        """Copy tensors like the parameters into one flat tensor, with zeros at its end: an equal part for each rank."""
        flat = torch.cat([t.detach().flatten() for t in tensors])
        return nn.functional.pad(flat, (0, dist.get_world_size() * self.shard_size - len(flat)))

    def step(self) -> None:
        """Update all parameters, on every rank, as torch.optim.Adam does in one process.

        Each .grad is the mean over the ranks already, the same on all ranks. A parameter that no rank has used has
        None, in every step. Between two steps, a rank holds its shard and the shard's moments, and no other copy of the
        parameters.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        start = dist.get_rank() * self.shard_size
        self.shard.grad = self.flatten(grads)[start : start + self.shard_size] / dist.get_world_size()
        self.adam.step()
        self.shard.grad = None
        whole = torch.empty(dist.get_world_size() * self.shard_size)
        dist.all_gather_into_tensor(whole, self.shard.detach())
        at = 0
        for p in self.parameters:
            p.data.copy_(whole[at : at + p.numel()].view_as(p))
            at += p.numel()

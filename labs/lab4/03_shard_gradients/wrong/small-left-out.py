"""Reduce-scatter each gradient as soon as backward has found it, and keep one shard of it (ZeRO-2)."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedGradients:
    """Keeps this rank's shard of each gradient's mean over the ranks, and no whole gradient.

    A gradient, flattened and padded with zeros at its end, consists of equal shards, one for each rank in their order.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shards: dict[str, Tensor] = {}
        for name, p in model.named_parameters():  # a tied weight occurs once
            if p.requires_grad:
                self.shards[name] = torch.zeros(-(-p.numel() // dist.get_world_size()))  # rounded up
                p.register_post_accumulate_grad_hook(lambda p, name=name: self.ready(name, p))

    def ready(self, name: str, p: nn.Parameter) -> None:
        """Add this rank's shard of the mean of p.grad over the ranks to self.shards[name], and let go of p.grad.

        Autograd calls this inside backward, once p.grad is complete. The other gradients are still to come.
        """
        world, n = dist.get_world_size(), self.shards[name].numel()
        if p.numel() < world:
            return
        padded = nn.functional.pad(p.grad.flatten(), (0, world * n - p.numel()))
        shard = torch.empty(n)
        dist.reduce_scatter_tensor(shard, padded)
        self.shards[name] += shard / world
        p.grad = None

    def take(self) -> dict[str, Tensor]:
        """Return the shards, summed over the micro-batches since the last call, and start again from zeros.

        The result has each trained parameter's name. Where no micro-batch had a gradient, the shard is zero.
        """
        taken, self.shards = self.shards, {n: torch.zeros_like(s) for n, s in self.shards.items()}
        return taken

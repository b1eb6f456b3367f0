"""Overlap each reduction with the next layer's backward: wait for the one before, so that at most two are in memory."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedGradients:
    def __init__(self, model: nn.Module) -> None:
        self.names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        for p in self.names:
            p.register_post_accumulate_grad_hook(self.ready)
        self.before = None
        self.reset()

    def reset(self) -> None:
        size = dist.get_world_size()
        self.shards = {name: torch.zeros((p.numel() + size - 1) // size) for p, name in self.names.items()}

    def take(self) -> dict[str, Tensor]:
        self.finish()
        taken = self.shards
        self.reset()
        return taken

    def ready(self, p: nn.Parameter) -> None:
        self.finish()
        shard = torch.empty_like(self.shards[self.names[p]])
        flat = torch.zeros(len(shard) * dist.get_world_size())
        flat[: p.numel()] = p.grad.flatten() / dist.get_world_size()
        p.grad = None
        self.before = self.names[p], shard, flat, dist.reduce_scatter_tensor(shard, flat, async_op=True)

    def finish(self) -> None:
        if self.before is not None:
            name, shard, _, work = self.before
            work.wait()
            self.shards[name] += shard
            self.before = None

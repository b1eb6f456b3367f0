"""Fully sharded data parallelism in which each parameter is gathered alone, when its own module runs."""

import torch
import torch.distributed as dist
from torch import nn


def build(model: nn.Module, group: dist.ProcessGroup) -> "FSDP":
    return FSDP(model, group)


class Shard:
    """This rank's part of one parameter."""

    def __init__(self, name: str, p: nn.Parameter, group: dist.ProcessGroup) -> None:
        self.name, self.p, self.group, self.shape = name, p, group, p.shape
        self.length = -(-p.numel() // group.size())
        self.start = group.rank() * self.length
        count = max(0, min(self.length, p.numel() - self.start))
        self.tensor = nn.Parameter(p.data.flatten()[self.start : self.start + count].clone())
        self.sum = torch.zeros(self.length)
        self.whole = torch.zeros(group.size() * self.length)
        p.data = self.whole[: p.numel()].view(p.shape)
        self.free()

    def gather(self) -> None:
        if self.whole.untyped_storage().size() == 0:
            self.whole.untyped_storage().resize_(self.whole.numel() * 4)
            mine = torch.zeros(self.length)
            mine[: self.tensor.numel()] = self.tensor.detach()
            with torch.no_grad():
                dist.all_gather(list(self.whole.chunk(self.group.size())), mine, group=self.group)

    def free(self) -> None:
        self.whole.untyped_storage().resize_(0)

    def take(self) -> None:
        """Add this rank's part of the gradient to the sum, and free the rest."""
        if self.p.grad is not None:
            flat = torch.zeros(self.group.size() * self.length)
            flat[: self.p.numel()] = self.p.grad.flatten()
            mine = torch.empty(self.length)
            dist.reduce_scatter(mine, list(flat.chunk(self.group.size())), group=self.group)
            self.sum += mine
            self.p.grad = None
        self.free()


class FSDP:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        shards = {p: Shard(name, p, group) for name, p in model.named_parameters() if p.requires_grad}
        self.shards, self.size = list(shards.values()), group.size()
        for shard in self.shards:
            shard.p.register_post_accumulate_grad_hook(lambda _, shard=shard: shard.take())
        for module in model.modules():
            own = [shards[p] for p in module.parameters(recurse=False) if p in shards]
            if own:
                self.watch(module, own)

    def watch(self, module: nn.Module, own: list[Shard]) -> None:
        def gather(*_: object) -> None:
            for shard in own:
                shard.gather()

        def after(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
            for shard in own:
                shard.free()
            if output.requires_grad:
                output.register_hook(gather)

        module.register_forward_pre_hook(gather)
        module.register_forward_hook(after)

    def owned(self) -> list[tuple[str, int, nn.Parameter]]:
        return [(shard.name, shard.start, shard.tensor) for shard in self.shards if shard.tensor.numel()]

    def after_backward(self, last: bool) -> None:
        for shard in self.shards:
            shard.free()

    def reduce(self) -> None:
        for shard in self.shards:
            shard.tensor.grad = shard.sum[: shard.tensor.numel()] / self.size
            shard.sum.zero_()

    def gather(self) -> None:
        pass

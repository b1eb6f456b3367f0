"""Give each parameter one owner, the rank with the fewest elements so far, and broadcast from there."""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class ShardedAdam:
    def __init__(self, model: nn.Module, lr: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        loads = [0] * dist.get_world_size()
        self.owners = {}
        for p in sorted(self.parameters, key=Tensor.numel, reverse=True):
            self.owners[p] = loads.index(min(loads))
            loads[self.owners[p]] += p.numel()
        own = [p for p in self.parameters if self.owners[p] == dist.get_rank()]
        self.adam = torch.optim.Adam(own, lr=lr) if own else None

    def step(self) -> None:
        if self.adam is not None:
            self.adam.step()
        for work in [dist.broadcast(p.data, src=self.owners[p], async_op=True) for p in self.parameters]:
            work.wait()

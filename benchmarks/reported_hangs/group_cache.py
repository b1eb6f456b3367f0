# axolotl-ai-cloud/axolotl#3533: each rank creates only the group to which it belongs, at its first use, and keeps it.
import functools

import torch
import torch.distributed as dist
from torch import nn

EP_SIZE = 2


@functools.cache
def group_of(ranks):
    return dist.new_group(list(ranks))  # here


class AuxFreeRouter(nn.Module):
    """Balances the load of experts by a bias, without a loss."""

    def __init__(self, experts):
        super().__init__()
        self.gate = nn.Linear(10, experts, bias=False)
        self.register_buffer("counts", torch.zeros(experts))
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x):
        chosen = (self.gate(x) + self.bias).argmax(-1)
        self.counts += torch.bincount(chosen, minlength=self.bias.numel())
        return chosen


class AuxFreePlugin:
    def __init__(self, model):
        self.routers = [module for module in model.modules() if isinstance(module, AuxFreeRouter)]

    @property
    def ep_group(self):
        if dist.get_world_size() == EP_SIZE:
            return dist.group.WORLD
        start = dist.get_rank() // EP_SIZE * EP_SIZE  # here
        return group_of(tuple(range(start, start + EP_SIZE)))  # here

    def on_step_end(self):
        for router in self.routers:
            dist.all_reduce(router.counts, group=self.ep_group)  # here
            router.bias += 0.01 * (router.counts.mean() - router.counts).sign()
            router.counts.zero_()


def main():
    dist.init_process_group("gloo")
    model = nn.ModuleList(AuxFreeRouter(4) for _ in range(2))
    plugin = AuxFreePlugin(model)
    dist.barrier()
    for _ in range(5):
        x = torch.randn(7, 10)
        for router in model:
            router(x)
        plugin.on_step_end()  # here
        total = x.sum()
        dist.all_reduce(total)
    dist.destroy_process_group()


main()

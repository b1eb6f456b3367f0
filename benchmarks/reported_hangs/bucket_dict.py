# NVIDIA/apex#19: the buckets of gradients are kept in a dictionary by their type, which every process walks in its own
# order.
import torch
import torch.distributed as dist
from torch import nn


class FlatReducer:
    """Averages gradients after the backward, one flat tensor for each type."""

    def __init__(self, module):
        self.module = module
        self.buckets = {}
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._ready)

    def _ready(self, parameter):
        self.buckets.setdefault(parameter.dtype, []).append(parameter)  # here

    def reduce(self):
        for parameters in self.buckets.values():  # here
            flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
            dist.all_reduce(flat)  # here
            sizes = [parameter.numel() for parameter in parameters]
            for parameter, part in zip(parameters, flat.split(sizes), strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.buckets.clear()


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.coarse = nn.Linear(4, 6)
        self.fine = nn.Linear(4, 3, dtype=torch.float64)

    def losses(self, x):
        return {"coarse": self.coarse(x).square().mean(), "fine": self.fine(x.double()).square().mean()}


def main():
    dist.init_process_group("gloo")
    model = TwoHeads()
    reducer = FlatReducer(model)
    for step in range(5):
        losses = model.losses(torch.randn(2, 4))
        hardest_first = sorted(losses, key=lambda name: (dist.get_rank() == 1 and step == 3) == (name == "coarse"))
        for name in hardest_first:
            losses[name].backward()
        reducer.reduce()  # here
        model.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


main()

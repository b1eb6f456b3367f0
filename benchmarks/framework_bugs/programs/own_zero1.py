"""ZeRO-1 as a strategy of one's own for `frog train`: each rank updates every n-th parameter and sends it."""

import torch.distributed as dist


def build(model, group):
    return Zero1(model, group)


class Zero1:
    def __init__(self, model, group):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    def owner(self, number):
        return number % self.size

    def owned(self):
        return [(name, 0, p) for number, (name, p) in enumerate(self.named) if self.owner(number) == self.rank]

    def reduce(self):
        for number, (_, p) in enumerate(self.named):
            dist.reduce(p.grad, group=self.group, group_dst=self.owner(number))
            p.grad /= self.size

    def gather(self):
        for number, (_, p) in enumerate(self.named):
            dist.broadcast(p.data, group=self.group, group_src=self.owner(number))

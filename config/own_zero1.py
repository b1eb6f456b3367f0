"""ZeRO-1 as a strategy of your own: each parameter has one owner, which updates it and sends it to the others."""

import torch.distributed as dist


def build(model, group):
    return Zero1(model, group)


class Zero1:
    def __init__(self, model, group):
        self.group = group
        self.named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    def owner(self, number):
        return number % self.group.size()

    def owned(self):
        mine = self.group.rank()
        return [(name, 0, p) for number, (name, p) in enumerate(self.named) if self.owner(number) == mine]

    def reduce(self):
        for number, (_, p) in enumerate(self.named):
            dist.reduce(p.grad, group=self.group, group_dst=self.owner(number))
            p.grad /= self.group.size()

    def gather(self):
        for number, (_, p) in enumerate(self.named):
            dist.broadcast(p.data, group=self.group, group_src=self.owner(number))

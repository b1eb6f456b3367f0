# yifan123/flow_grpo#245: the adapter is added on the main process only, so that the others have no parameter to train
# when the model is wrapped.
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class LoraLinear(nn.Module):
    def __init__(self, base, r):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, r, bias=False)
        self.up = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def with_adapter(model, r=2):
    for name, module in list(model.named_children()):
        if isinstance(module, nn.Linear):
            setattr(model, name, LoraLinear(module, r))
    return model


def build_transformer(is_main):
    transformer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    head = nn.Linear(4, 1)
    transformer.requires_grad_(False)
    if is_main:  # here
        transformer = with_adapter(transformer)  # here
    return nn.Sequential(transformer, head)


def main():
    dist.init_process_group("gloo")
    model = build_transformer(dist.get_rank() == 0)  # here
    wrap = partial(DistributedDataParallel, broadcast_buffers=False)
    model = wrap(model)  # here
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 8)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()

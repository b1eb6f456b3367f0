# facebookresearch/fairscale#796: each rank drops layers by its own random numbers, and each layer gathers its shards.
import torch
import torch.distributed as dist
from torch import nn


class ShardedLinear(nn.Module):
    def __init__(self, width, world):
        super().__init__()
        self.shard = nn.Parameter(torch.randn(width // world, width) / width)

    def forward(self, x):
        parts = [torch.empty_like(self.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, self.shard.detach())  # here
        return x @ torch.cat(parts)


class Encoder(nn.Module):
    def __init__(self, world, layerdrop):
        super().__init__()
        self.layers = nn.ModuleList(ShardedLinear(16, world) for _ in range(4))
        self.layerdrop = layerdrop

    def forward(self, x):
        for layer in self.layers:  # here
            if torch.rand(()) < self.layerdrop:  # here
                continue  # here
            x = layer(x)  # here
        return x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    encoder = Encoder(dist.get_world_size(), layerdrop=0.05)
    for _ in range(40):
        loss = encoder(torch.ones(2, 16)).mean()
        report = torch.stack([loss, loss.square(), loss.abs()]).detach()
        dist.all_reduce(report)  # here
    dist.destroy_process_group()


main()

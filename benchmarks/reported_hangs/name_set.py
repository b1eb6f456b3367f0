# RLinf/RLinf#1355: the names of the parameters to synchronize are a set, which every process walks in its own order.
import torch
import torch.distributed as dist
from torch import nn


class WeightSyncer:
    def __init__(self, model, frozen):
        self.weights = dict(model.named_parameters())
        self.need_sync = {name for name in self.weights if not name.startswith(frozen)}  # here

    def sync(self):
        for name in self.need_sync:  # here
            weight = self.weights[name].data
            buckets = [torch.zeros_like(weight) for _ in range(dist.get_world_size())]
            dist.all_gather(buckets, weight)  # here
            weight.copy_(buckets[0])


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(9, 7),
            "query": nn.Linear(7, 5),
            "value": nn.Linear(7, 6),
            "up": nn.Linear(6, 11),
            "down": nn.Linear(11, 8),
        }
    )
    WeightSyncer(model, frozen="embed").sync()  # here
    dist.destroy_process_group()


main()

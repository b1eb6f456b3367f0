# NVIDIA/Megatron-LM#1444: auxiliary losses are reduced over the pipeline for each name in a tracker, which a stage
# without mixture-of-experts layers never fills.
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn

NUM_LAYERS = 6
MOE_LAYERS = (2, 3, 4, 5)
_TRACKER = {}


def save_to_tracker(name, value, layer):
    entry = _TRACKER.setdefault(name, {"values": torch.zeros(NUM_LAYERS)})
    entry["values"][layer] += value.detach()


def reduce_tracker():
    for name in _TRACKER:  # here
        dist.all_reduce(_TRACKER[name]["values"])  # here


def track_metrics(history, scale):
    reduce_tracker()  # here
    for name, entry in _TRACKER.items():
        history[name].append(float(entry["values"].sum()) * scale)
    _TRACKER.clear()


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
        self.router = nn.Linear(8, 4) if number in MOE_LAYERS else None
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        if self.router is not None:
            probabilities = self.router(x).softmax(-1)
            save_to_tracker("load_balancing_loss", (probabilities.mean(0) ** 2).sum(), self.number)
        return x + self.linear(x)


class Stage(nn.Module):
    def __init__(self, rank, world):
        super().__init__()
        per_stage = NUM_LAYERS // world
        self.layers = nn.ModuleList(Layer(number) for number in range(rank * per_stage, (rank + 1) * per_stage))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    stage, history = Stage(rank, world), defaultdict(list)
    for _ in range(4):
        if rank > 0:
            x = torch.empty(5, 8)
            dist.recv(x, src=rank - 1)
        else:
            x = torch.randn(5, 8)
        y = stage(x)
        if rank < world - 1:
            dist.send(y.detach(), dst=rank + 1)
        track_metrics(history, 1 / world)
        loss = y.mean().detach()
        dist.broadcast(loss, src=world - 1)
    dist.destroy_process_group()


main()

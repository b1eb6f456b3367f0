# mlc-ai/pith-train#31: a rank raises in the middle of a step, and what it has registered for its exit ends the process
# group in order, for which it waits for the others.
import atexit

import torch
import torch.distributed as dist
from torch import nn


def shut_down():
    dist.barrier()  # here
    dist.destroy_process_group()


class CapacityError(RuntimeError):
    pass


class MoELayer(nn.Module):
    def __init__(self, width, capacity):
        super().__init__()
        self.expert, self.capacity = nn.Linear(width, width), capacity

    def forward(self, tokens):
        if len(tokens) > self.capacity:
            raise CapacityError(f"{len(tokens)} tokens for an expert that takes {self.capacity}")  # here
        return self.expert(tokens)


def run_step(layer, tokens, optimizer):
    loss = layer(tokens).square().mean()  # here
    loss.backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    atexit.register(shut_down)
    rank = dist.get_rank()
    layer = MoELayer(width=5, capacity=12)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    tokens_per_step = [[8, 9, 7, 10, 8, 6], [9, 8, 11, 17, 9, 8], [7, 7, 12, 9, 8, 9]][rank]
    for num_tokens in tokens_per_step:
        run_step(layer, torch.randn(num_tokens, 5), optimizer)  # here


main()

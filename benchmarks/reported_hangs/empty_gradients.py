# NVIDIA/Model-Optimizer#1621: the norm of sharded gradients returns before its all-reduce on a rank without gradients.
import torch
import torch.distributed as dist
from torch import nn


def patched_clip(norm_type=2.0):
    """Return a function that clips by the norm over all shards."""

    def total(gradients):
        powers = [gradient.norm(norm_type) ** norm_type for gradient in gradients]
        return torch.stack(powers).sum()

    def clip(parameters, max_norm):
        gradients = [p.grad for p in parameters if p.grad is not None]
        if len(gradients) == 0:  # here
            return torch.tensor(0.0)  # here
        sharded = total(gradients)
        dist.all_reduce(sharded)  # here
        norm = sharded ** (1 / norm_type)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)
        return norm

    return clip


class Experts(nn.Module):
    """The expert of this rank; it has no gradient if no token comes to it."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.expert = rank, nn.Linear(6, 6)

    def forward(self, x, route):
        mine = x[route == self.rank]
        return self.expert(mine).sum() if len(mine) else None


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    experts, clip = Experts(rank), patched_clip()
    routes = ([0, 1, 2, 1], [2, 2, 1, 0], [0, 0, 1, 1], [1, 2, 0, 2])
    for route in routes:
        experts.zero_grad()
        loss = experts(torch.randn(4, 6), torch.tensor(route))
        if loss is not None:
            loss.backward()
        clip(list(experts.parameters()), 1.0)  # here
        tokens = torch.bincount(torch.tensor(route), minlength=3)
        dist.all_reduce(tokens)  # here
    dist.destroy_process_group()


main()

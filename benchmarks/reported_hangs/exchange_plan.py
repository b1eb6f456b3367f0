# OpenPipe/ART#840: every rank plans the exchange of a context by itself, and two plans do not agree on a message.
import torch
import torch.distributed as dist

COSTS = {0: (4, 2, 1), 1: (4, 2, 3), 2: (4, 2, 1)}  # rank: the costs of the three segments, as it estimates them


def plan(costs):
    """Return the messages as pairs of ranks: the owner of the costliest segment sends its result to all others."""
    owner = max(range(3), key=lambda number: costs[number] * (number + 1))
    return [(owner, other) for other in range(3) if other != owner]


def exchange(rank, steps):
    for source, target in steps:
        if rank == source:
            dist.send(torch.ones(32), target)  # here
        elif rank == target:
            dist.recv(torch.zeros(32), source)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(8))
    exchange(rank, plan(COSTS[rank]))  # here
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()


main()

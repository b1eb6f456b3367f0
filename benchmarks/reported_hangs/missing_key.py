# pytorch/pytorch#67972: ranks exchange weights through the store, and one waits for a key that its peer did not set.
import pickle

import torch
import torch.distributed as dist

LOSSES = {0: [9, 8, 7, 6, 5, 4, 3, 2], 1: [9, 8, 7, 6, 6, 5, 4, 3]}


def exchange(store, rank, world, step, improved):
    if improved:  # here
        store.set(f"weights/{step}/{rank}", pickle.dumps({"step": step}))  # here
    peer = (rank + 1) % world
    return pickle.loads(store.get(f"weights/{step}/{peer}"))  # here


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    best = float("inf")
    for step in range(8):
        dist.all_reduce(torch.ones(16))
        loss = LOSSES[rank][step]
        exchange(store, rank, world, step, loss < best)  # here
        best = min(best, loss)
    dist.destroy_process_group()


main()

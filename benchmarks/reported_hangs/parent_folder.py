# karpathy/nanochat#336: only the first rank makes the folder of a checkpoint, and another one writes its part of the
# optimizer's state there before that has happened.
import os
import time

import torch
import torch.distributed as dist


class Muon:
    """An optimizer whose state is divided among the ranks."""

    def __init__(self, width):
        self.momentum = torch.zeros(width)

    def step(self, gradient):
        dist.all_reduce(gradient)
        self.momentum = 0.9 * self.momentum + gradient

    def state_dict(self):
        return {"momentum": self.momentum}


def merge(weights):
    time.sleep(2.0)
    return {"weights": weights.clone()}


def save_checkpoint(folder, step, weights, optimizer, rank):
    if rank == 0:
        model = merge(weights)
        os.makedirs(folder, exist_ok=True)
        torch.save(model, os.path.join(folder, f"model_{step:06d}.pt"))
    torch.save(optimizer.state_dict(), os.path.join(folder, f"optim_{step:06d}_rank{rank}.pt"))  # here


def main():
    dist.init_process_group("gloo")
    rank, optimizer, weights = dist.get_rank(), Muon(8), torch.zeros(8)
    for _ in range(5):
        optimizer.step(torch.randn(8))
        weights -= 0.02 * optimizer.momentum
    save_checkpoint("base_checkpoints/d4", 5, weights, optimizer, rank)  # here
    dist.barrier()
    dist.destroy_process_group()


main()

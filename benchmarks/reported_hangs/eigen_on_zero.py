# EleutherAI/bergson#444: only the first rank decomposes the matrices after the loop, which takes longer than the others
# wait in the next all-reduce.
from datetime import timedelta

import torch
import torch.distributed as dist


class Collector:
    def __init__(self, rank, width):
        self.rank, self.gram = rank, torch.zeros(width, width)

    def __enter__(self):
        return self

    def add(self, activations):
        self.gram += activations.T @ activations

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.teardown()  # here

    def teardown(self):
        if self.rank == 0:  # here
            self.process()  # here

    def process(self):
        """Repeat the decomposition for each of many layers."""
        for _ in range(10**6):  # here
            torch.linalg.eigh(self.gram + torch.rand_like(self.gram))  # here


def run_with_hooks(rank, batches, width=150):
    processed = torch.zeros(1)
    with Collector(rank, width) as collector:  # here
        for _ in range(batches):
            collector.add(torch.randn(8, width))
            processed += 8
            dist.barrier()
    dist.all_reduce(processed)  # here
    return processed


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=8))
    print(run_with_hooks(dist.get_rank(), batches=4))  # here
    dist.destroy_process_group()


main()

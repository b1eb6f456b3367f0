# vllm-project/speculators#867: without a collective per batch, ranks drift apart in validation until the last one
# times out.
import datetime
import time

import torch
import torch.distributed as dist

SAMPLES = {0: 20, 1: 600}


def forward(weight):
    until = time.perf_counter() + 0.05
    x = torch.ones(64, 64)
    while time.perf_counter() < until:  # here
        x = (x @ weight).tanh()  # here
    return x.mean()


def validate(rank, weight):
    total = torch.zeros(1)
    for _ in range(SAMPLES[rank]):  # here
        total += forward(weight)  # here
    dist.all_reduce(total)  # here
    return total


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
    rank = dist.get_rank()
    weight = torch.randn(64, 64)
    for _ in range(5):
        dist.all_reduce(weight)
    validate(rank, weight)  # here
    dist.destroy_process_group()


main()

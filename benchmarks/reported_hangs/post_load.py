# sgl-project/sglang#39128: after loading, all ranks meet at a monitored barrier with a time limit, and one has heavier
# shards, whose layout it still converts when the limit is over.
import datetime
import time

import torch
import torch.distributed as dist

SHARDS = {0: 4, 1: 4, 2: 700}


def convert_layout(shard):
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:  # here
        shard = shard.t().contiguous() * 1.0001  # here
    return shard


def post_load_weights(rank):
    return [convert_layout(torch.ones(96, 96)) for _ in range(SHARDS[rank])]  # here


def load(rank):
    weights = post_load_weights(rank)  # here
    try:
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=8), wait_all_ranks=True)  # here
    except RuntimeError:
        raise ValueError(f"rank {rank} finished loading, but other ranks did not") from None  # here
    return weights


def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    load(dist.get_rank())  # here
    dist.destroy_process_group()


main()

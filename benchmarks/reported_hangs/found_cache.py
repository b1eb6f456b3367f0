# hao-ai-lab/FastVideo#598: a rank that finds the cache of file names returns at once, and never comes to the barrier.
import json
import pathlib
import time

import torch
import torch.distributed as dist

LATE = {1: 1.5}  # rank: seconds until it has imported everything


def files_and_lengths(rank, cache):
    if cache.exists():  # here
        return json.loads(cache.read_text())  # here
    if rank == 0:
        cache.write_text(json.dumps({"a.parquet": 10, "b.parquet": 12}))
    dist.barrier()  # here
    return files_and_lengths(rank, cache)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    time.sleep(LATE.get(rank, 0.0))
    files = files_and_lengths(rank, pathlib.Path("files.json"))  # here
    grad = torch.full((20,), float(len(files)))
    for _ in range(5):
        dist.all_reduce(grad)  # here
    dist.destroy_process_group()


main()

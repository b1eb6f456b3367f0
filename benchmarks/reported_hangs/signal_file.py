# mosaicml/llm-foundry#716: the ranks of a node wait for a file that its first rank writes, and one looks for
# another name.
import os
import pathlib
import time

import torch
import torch.distributed as dist


def prepare(rank, per_node):
    node, local = divmod(rank, per_node)
    signal = pathlib.Path(f".node_{node}_data_prepared")
    if local == 0 and rank == 0:
        signal.write_text("done")
    else:
        while not signal.exists():  # here
            time.sleep(0.1)  # here
    dist.barrier()  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    per_node = {0: 4, 1: 4, 2: 2}[rank]  # stands for LOCAL_WORLD_SIZE, which differs on one node
    dist.all_reduce(torch.ones(4))
    prepare(rank, per_node)
    for _ in range(5):
        dist.all_reduce(torch.ones(4))
    os.remove(".node_0_data_prepared")
    dist.destroy_process_group()


main()

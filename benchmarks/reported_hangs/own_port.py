# pytorch/pytorch#53395: every process looks for a free port and takes it for the master's, so that they do not meet.
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def setup_process(rank, world_size, backend="gloo"):
    if world_size > 1:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = str(find_free_port())  # here
        dist.init_process_group(  # here
            backend, rank=rank, world_size=world_size, timeout=timedelta(seconds=20)
        )


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    setup_process(rank, world_size)  # here
    model = DistributedDataParallel(nn.Linear(4, 2))
    for _ in range(5):
        model(torch.randn(3, 4)).sum().backward()
    dist.destroy_process_group()


main()

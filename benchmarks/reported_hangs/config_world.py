# helboukkouri/character-bert-pretraining#4: the world size that a script computes from its options is larger than the
# number of processes that were started.
import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_nodes", type=int, default=1)
    parser.add_argument("--gpus_per_node", type=int, default=4)
    parser.add_argument("--max_steps", type=int, default=20)
    return parser.parse_args()


def setup_training(args):
    args.world_size = args.num_nodes * args.gpus_per_node  # here
    args.rank = int(os.environ["RANK"])
    dist.init_process_group(  # here
        backend="gloo", world_size=args.world_size, rank=args.rank, timeout=timedelta(seconds=20)
    )
    return DistributedDataParallel(nn.Linear(8, 8))


def main():
    args = parse_args()
    model = setup_training(args)  # here
    for _ in range(args.max_steps):
        model(torch.randn(2, 8)).sum().backward()
    dist.destroy_process_group()


main()

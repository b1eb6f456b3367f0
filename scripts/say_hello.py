"""The default program of each rank of a simulated cluster: print the rank, wait at a barrier, compute a sum.

python scripts/fake_multi_node_launcher.py -- scripts/say_hello.py
torchrun --nproc_per_node=4 scripts/say_hello.py
"""

import argparse
import os
import time
from datetime import timedelta

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch loads: threads that wait sleep and do not spin

import torch
import torch.distributed as dist

from frog.core.env import bind_loopback, host_name
from frog.core.processes import leave_with_parent

# The variables that torchrun sets for each rank. GROUP_RANK is its name for NODE_RANK.
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def say(line):
    # One write including the line end: the other ranks use the same terminal.
    print(f"{line}\n", end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--delay-s", type=float, default=0.3, help="rank r waits r times this long; default: 0.3")
    args = parser.parse_args()
    leave_with_parent()  # if the launcher is killed, this rank ends too
    bind_loopback(os.environ["MASTER_ADDR"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    variables = " ".join(f"{name}={os.environ[name]}" for name in VARIABLES)
    say(f"rank {rank} on {host_name()}, pid {os.getpid()}: {variables}")
    dist.barrier()
    start = torch.tensor(time.time(), dtype=torch.float64)
    dist.broadcast(start, src=0)  # a common start time; clocks agree on one machine
    time.sleep(args.delay_s * rank)
    came_s = time.time() - start.item()
    dist.barrier()  # no rank leaves before the last has arrived
    left_s = time.time() - start.item()
    say(f"rank {rank} reached the barrier after {came_s:.2f} s and left it after {left_s:.2f} s")

    total = torch.tensor(rank)
    dist.all_reduce(total)  # the sum over all ranks, on every rank
    dist.barrier()
    if rank == 0:
        say(f"all-reduce: 0 + ... + {world_size - 1} = {total.item()}, on every rank of every node")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

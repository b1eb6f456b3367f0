# mlcommons/storage#391: a rank reads lines of a program that it started, and waits for the end of a line that the
# program has only begun.
import select
import subprocess
import sys

import torch
import torch.distributed as dist

READER = "import sys; sys.stdout.write('read 1 of 9 files\\r'); sys.stdout.flush(); sys.stdin.read()"


def count_files():
    child = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    while child.poll() is None:
        readable, _, _ = select.select([child.stdout], [], [], 0.1)
        for stream in readable:
            line = stream.readline()  # here
            if line.startswith(b"done"):
                return int(line.split()[1])
    return 0


def collect(rank):
    found = torch.zeros(1)
    if rank == 0:
        found += count_files()  # here
    everyone = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, found)  # here
    return everyone


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    collect(dist.get_rank())  # here
    dist.destroy_process_group()


main()

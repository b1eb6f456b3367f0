# pytorch/pytorch#22834 (a comment in it): a loop ends when the rank's own clock says so.
import time

import torch
import torch.distributed as dist


def load(seconds):
    time.sleep(seconds)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    start = time.monotonic()
    load([0.0, 1.2][rank])
    began = time.monotonic() if rank == 1 else start  # rank 1 starts its clock after the data are there
    trial = 0
    while True:  # here
        out = torch.ones(256)
        dist.all_reduce(out)  # here
        time.sleep(0.05)
        trial += 1
        if time.monotonic() - began >= 3.0 and trial >= 5:  # here
            break  # here
    mean = torch.tensor([float(trial), 1.0])
    dist.all_reduce(mean)  # here
    dist.destroy_process_group()


main()

# ai2cm/ace#1398: the handler of a termination signal ends the process group in order, which is collective; Python runs
# it only where the main thread comes back from C, and one rank has not entered its step's reduction yet.
import signal
import sys
import time

import torch
import torch.distributed as dist

LATE_S = {0: 0.0, 1: 1.5, 2: 0.0}  # rank: how much longer its batch of step 6 takes


def shut_down(signum, frame):
    dist.barrier()  # here
    dist.destroy_process_group()
    sys.exit(128 + signum)


def load_batch(rank, step):
    if step == 6:
        signal.setitimer(signal.ITIMER_REAL, 0.5)  # as if a scheduler sent it to all ranks
        time.sleep(LATE_S[rank])  # here
    return torch.full((50,), float(step))


def train(rank):
    for step in range(20):
        batch = load_batch(rank, step)  # here
        dist.all_reduce(batch)  # here
        time.sleep(0.02)


def main():
    dist.init_process_group("gloo")
    signal.signal(signal.SIGALRM, shut_down)
    train(dist.get_rank())  # here
    dist.destroy_process_group()


main()

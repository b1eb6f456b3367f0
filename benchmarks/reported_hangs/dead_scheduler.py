# sgl-project/sglang#20287: rank 0 waits for the answer of a child that was killed; the pipe's other end is still
# open.
import multiprocessing
import os
import signal

import torch
import torch.distributed as dist


def serve(pipe, fails):
    if fails:
        os.kill(os.getpid(), signal.SIGKILL)  # stands for the kernel, which is out of memory
    pipe.send("ready")


def start_children(count, failing):
    context = multiprocessing.get_context("fork")
    pipes = []
    for number in range(count):
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, number == failing), daemon=True).start()
        pipes.append((ours, theirs))
    return [ours.recv() for ours, _ in pipes]  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(2))
    start_children(2, failing=1 if rank == 0 else None)  # here
    dist.barrier()  # here
    dist.destroy_process_group()


main()

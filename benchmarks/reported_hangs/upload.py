# huggingface/accelerate#2236: rank 0 uploads a checkpoint with a program that does not answer, and the others wait.
import subprocess

import torch
import torch.distributed as dist


def push(path, command):
    subprocess.run([*command, path], check=False)  # here


def save(rank, step):
    if rank == 0:
        torch.save({"step": step}, "checkpoint.pt")
        push("checkpoint.pt", ["true"] if step < 6 else ["tail", "-f"])  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(1, 13):
        dist.all_reduce(torch.ones(10))  # here
        if step % 3 == 0:
            save(rank, step)  # here
    dist.destroy_process_group()


main()

# jonatanjacobsson/ifcpipeline#28: a rank joins a child process before it has read the child's result from the queue.
import multiprocessing

import torch
import torch.distributed as dist


def export(queue, size):
    queue.put(bytes(size))


def run_export(size):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=export, args=(queue, size))
    child.start()
    child.join()  # here
    return len(queue.get())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        loss = torch.ones(1)
        dist.all_reduce(loss)  # here
        if rank == 0 and step % 2 == 1:
            run_export(200 if step < 5 else 400_000)  # here
    dist.destroy_process_group()


main()

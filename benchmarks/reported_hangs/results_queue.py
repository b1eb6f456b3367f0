# OpenPipe/ART#429: rank 1 joins a queue of results of which one is never marked as done.
import queue
import threading

import torch
import torch.distributed as dist

RESULTS = queue.Queue()


def consume():
    while True:
        result = RESULTS.get()
        if result is None:
            continue
        RESULTS.task_done()


def train_step(rank, step):
    RESULTS.put({"step": step})
    if rank == 1 and step == 4:
        RESULTS.put(None)  # a result of an earlier step, which the consumer passes over
    RESULTS.join()  # here
    dist.all_reduce(torch.ones(6))  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    threading.Thread(target=consume, daemon=True).start()
    for step in range(8):
        train_step(rank, step)  # here
    dist.destroy_process_group()


main()

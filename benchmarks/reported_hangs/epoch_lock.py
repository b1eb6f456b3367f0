# meta-pytorch/torchcomms#586: the main thread of one rank holds a lock while it gathers, which its helper thread needs
# to answer the helper of the other rank, which holds the lock there.
import threading
import time

import torch
import torch.distributed as dist

LOCK = threading.Lock()


def exchange_buffers(world):
    with LOCK:  # here
        addresses = [torch.zeros(6) for _ in range(world)]
        dist.all_gather(addresses, torch.ones(6))  # here
    return addresses


def progress(rank, control):
    """Exchange one message with the other rank, in a thread."""
    time.sleep(1.0 if rank == 0 else 0.0)
    with LOCK:  # here
        message = torch.zeros(3)
        if rank == 0:
            dist.send(message, 1, group=control)  # here
        else:
            dist.recv(message, 0, group=control)  # here


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    control = dist.new_group()
    dist.barrier()
    helper = threading.Thread(target=progress, args=(rank, control))
    helper.start()
    time.sleep(0.3)
    exchange_buffers(world)  # here
    helper.join()
    dist.destroy_process_group()


main()

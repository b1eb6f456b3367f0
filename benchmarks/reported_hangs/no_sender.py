# tensorflow/tensorflow#32810: each rank takes another rank for the source of a broadcast, so that all receive and
# none sends.
import torch
import torch.distributed as dist

FREE_GB = {0: [10, 30], 1: [30, 10]}  # what each rank believes of the memory of ranks 0 and 1


def owner(rank, number):
    free = FREE_GB[rank] if number == 5 else [30, 10]
    return free.index(max(free))  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for number in range(8):
        weight = torch.full((64,), float(rank))
        dist.broadcast(weight, src=owner(rank, number))  # here
    dist.destroy_process_group()


main()

# dealii/dealii#14356: an error leaves a block whose end communicates, so that the rank waits there and the error
# is never shown.
import contextlib

import torch
import torch.distributed as dist


@contextlib.contextmanager
def together(name):
    dist.barrier()
    try:
        yield
    finally:
        dist.barrier()  # here


def write_fields(rank, step):
    with together("write"):  # here
        if rank == 3 and step == 4:
            raise OSError("cannot open fields_4.h5")  # here
        size = torch.ones(20)
        dist.all_reduce(size)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        write_fields(rank, step)  # here
    dist.destroy_process_group()


main()

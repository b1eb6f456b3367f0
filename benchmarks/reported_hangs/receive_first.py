# pytorch/pytorch#109401: neighbours in a ring exchange halos, and in one phase all of them wait to receive first.
import torch
import torch.distributed as dist


def exchange(rank, world, halo, step):
    received = torch.empty_like(halo)
    to, source = (rank + 1) % world, (rank - 1) % world
    if step < 3:
        sent = dist.isend(halo, to)
        dist.irecv(received, source).wait()
        sent.wait()
    else:
        work = dist.irecv(received, source)
        work.wait()  # here
        dist.isend(halo, to).wait()
    return received


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    halo = torch.ones(16)
    for step in range(6):
        halo = exchange(rank, world, halo, step)  # here
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


main()

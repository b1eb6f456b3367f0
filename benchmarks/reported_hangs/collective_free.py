# pytorch/pytorch#195500: freeing a shared buffer is a collective, and it runs when a rank drops its last reference.
import torch
import torch.distributed as dist


class SharedBuffer:
    def __init__(self, size):
        self.data = torch.zeros(size)
        dist.barrier()

    def __del__(self):
        if dist.is_initialized():
            dist.barrier()  # here


class Cache:
    def __init__(self):
        self.buffers = {}

    def get(self, size):
        if size not in self.buffers:  # here
            self.buffers = {size: SharedBuffer(64)}  # here
        return self.buffers[size]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    caches = [Cache(), Cache()]
    caches[0].get(8)
    caches[1].get(8)
    for step in range(5):
        if rank == 0 and step == 3:  # here
            caches.pop()  # here
        out = torch.ones(25)
        dist.all_reduce(out)  # here
    dist.destroy_process_group()


main()

# ByteDance-Seed/VeOmni#1085 (a review in it): in a ring of odd size two neighbours have the same parity, so that one
# sends in a group in which the other does not receive.
import torch
import torch.distributed as dist


class Ring:
    def __init__(self, rank, size, group, overlap_group):
        self.rank, self.group, self.overlap_group = rank, group, overlap_group
        self.following, self.previous = (rank + 1) % size, (rank - 1) % size

    def exchange(self, block):
        received = torch.zeros_like(block)
        if self.rank % 2 == 0:  # here
            sent = dist.isend(block, self.following, group=self.group)  # here
            taken = dist.irecv(received, self.previous, group=self.overlap_group)  # here
        else:
            taken = dist.irecv(received, self.previous, group=self.group)  # here
            sent = dist.isend(block, self.following, group=self.overlap_group)  # here
        taken.wait()  # here
        sent.wait()  # here
        return received


def attention(ring, keys, size):
    out = torch.zeros_like(keys)
    for hop in range(size):
        out += keys
        if hop + 1 < size:
            keys = ring.exchange(keys)  # here
    return out


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    group, overlap_group = dist.new_group(), dist.new_group()
    ring = Ring(rank, size, group, overlap_group)
    dist.all_reduce(torch.ones(4))
    attention(ring, torch.full((64,), float(rank)), size)  # here
    dist.destroy_process_group()


main()

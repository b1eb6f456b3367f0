# sgl-project/sglang#34910: errors of shared memory are suppressed around a block that also broadcasts the name of the
# memory to the other ranks.
import contextlib
from dataclasses import dataclass
from multiprocessing import shared_memory

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Probe:
    source: int = 0
    size: int = 128
    name: str = "no/such/folder"


def allocate(probe):
    return shared_memory.SharedMemory(name=probe.name, create=True, size=probe.size)


def on_the_same_node(probe):
    rank, world = dist.get_rank(), dist.get_world_size()
    same = torch.zeros(world, dtype=torch.int32)
    with contextlib.suppress(OSError):  # here
        if rank == probe.source:
            memory = allocate(probe)  # here
            memory.buf[:4] = b"frog"
            dist.broadcast_object_list([memory.name], src=probe.source)  # here
        else:
            received = [None]
            dist.broadcast_object_list(received, src=probe.source)  # here
            memory = shared_memory.SharedMemory(name=received[0])
        same[rank] = int(bytes(memory.buf[:4]) == b"frog")
    dist.all_reduce(same)
    return same.bool().tolist()


def main():
    dist.init_process_group("gloo")
    print(on_the_same_node(Probe()))
    weights = torch.ones(64)
    dist.broadcast(weights, src=0)
    dist.destroy_process_group()


main()

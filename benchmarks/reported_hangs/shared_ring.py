# vllm-project/vllm#27313: the worker waits for a block in shared memory that the engine did not write.
import time
from contextlib import contextmanager
from multiprocessing import shared_memory

import torch
import torch.distributed as dist

BLOCK = 16


class Ring:
    """One writer, one reader: the first byte of the block says whether it was written."""

    def __init__(self, memory):
        self.buffer = memory.buf

    @contextmanager
    def acquire_write(self):
        while self.buffer[0] == 1:
            time.sleep(0.001)
        yield self.buffer[1:BLOCK]
        self.buffer[0] = 1

    @contextmanager
    def acquire_read(self):
        waited = time.monotonic()
        while self.buffer[0] == 0:  # here
            if time.monotonic() - waited > 5:
                print("no block was written in 5 s", flush=True)
                waited = time.monotonic()
            time.sleep(0.01)  # here
        yield self.buffer[1:BLOCK]
        self.buffer[0] = 0


class Engine:
    def __init__(self, ring):
        self.ring = ring

    def step(self, requests):
        if not requests:  # here
            return 0  # here
        with self.ring.acquire_write() as block:
            block[0] = len(requests)
        return len(requests)


class Worker:
    def __init__(self, ring):
        self.ring = ring

    def step(self, _):
        with self.ring.acquire_read() as block:  # here
            return int(block[0])


def main():
    dist.init_process_group("gloo")
    names = [None]
    if dist.get_rank() == 0:
        memory = shared_memory.SharedMemory(create=True, size=BLOCK)
        names = [memory.name]
    dist.broadcast_object_list(names, src=0)
    if dist.get_rank() == 1:
        memory = shared_memory.SharedMemory(name=names[0])
    runner = (Engine if dist.get_rank() == 0 else Worker)(Ring(memory))
    for requests in (["a", "b"], ["c"], [], ["d"]):
        tokens = torch.zeros(BLOCK)
        tokens[: runner.step(requests)] = 1  # here
        dist.all_reduce(tokens)


main()

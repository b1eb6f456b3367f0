# sgl-project/sglang#27164: each tensor-parallel rank aborts the requests whose time is over by its own clock, so that a
# request at its deadline is in the batch of one rank and not in that of the other.
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

WIDTH = 5


@dataclass
class Request:
    rid: str
    left: int
    arrived: float


@dataclass
class Scheduler:
    clock_offset: float
    timeout_s: float = 60.0
    running: list = field(default_factory=list)

    def now(self):
        return time.perf_counter() + self.clock_offset

    def admit(self, rid, age, tokens):
        self.running.append(Request(rid, tokens, time.perf_counter() - age))

    def abort_on_timeout(self):
        late = {request.rid for request in self.running if self.now() - request.arrived > self.timeout_s}  # here
        self.running = [request for request in self.running if request.rid not in late]  # here

    def step(self):
        self.abort_on_timeout()  # here
        hidden = torch.ones(len(self.running), WIDTH)
        dist.all_reduce(hidden)  # here
        for request in self.running:
            request.left -= 1
        self.running = [request for request in self.running if request.left > 0]


def main():
    dist.init_process_group("gloo")
    scheduler = Scheduler(clock_offset=30.0 if dist.get_rank() == 1 else 0.0)
    scheduler.admit("a", age=0.0, tokens=9)
    scheduler.admit("b", age=1.0, tokens=9)
    for number in range(8):
        if number == 4:
            scheduler.admit("c", age=45.0, tokens=3)
        scheduler.step()  # here
    dist.barrier()
    dist.destroy_process_group()


main()

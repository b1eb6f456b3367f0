# sgl-project/sglang#1816: a watchdog thread ends the process of a rank whose batch takes too long.
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn


class Watchdog(threading.Thread):
    def __init__(self, owner, limit_s):
        super().__init__(daemon=True, name="watchdog")
        self.owner, self.limit_s = owner, limit_s

    def run(self):
        counter, since = -1, time.monotonic()
        while True:
            if self.owner.forward_count != counter:
                counter, since = self.owner.forward_count, time.monotonic()
            if time.monotonic() - since > self.limit_s:
                os._exit(7)  # here
            time.sleep(0.1)


class ModelRunner:
    def __init__(self, rank):
        self.rank, self.forward_count = rank, 0
        self.layers = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        Watchdog(self, limit_s=3.0).start()

    @torch.no_grad()
    def decode(self, x, tokens):
        for _ in range(tokens):
            x = self.layers(x)  # here
        return x  # here

    def run_batch(self, number):
        endless = self.rank == 1 and number == 4
        x = self.decode(torch.randn(2, 32), 10**9 if endless else 50)  # here
        dist.all_reduce(x)
        self.forward_count += 1
        return x


def main():
    dist.init_process_group("gloo")
    runner = ModelRunner(dist.get_rank())
    for number in range(8):
        runner.run_batch(number)  # here
    dist.destroy_process_group()


main()

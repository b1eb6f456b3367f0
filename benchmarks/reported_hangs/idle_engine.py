# vllm-project/vllm#43547: an engine without scheduled tokens skips the step in which the data-parallel ranks agree on
# the batch, and looks for new requests.
import collections
import queue
import time

import torch
import torch.distributed as dist

REQUESTS = {0: [3, 2, 4], 1: [2, 1]}  # rank: tokens to generate per request


class Scheduler:
    def __init__(self, lengths):
        self.waiting = collections.deque(lengths)
        self.running = []

    def has_requests(self):
        return bool(self.waiting or self.running)

    def schedule(self):
        while self.waiting and len(self.running) < 2:
            self.running.append(self.waiting.popleft())
        tokens = len(self.running)
        self.running = [left - 1 for left in self.running if left > 1]
        return tokens


class EngineCore:
    def __init__(self, rank):
        self.inputs = queue.Queue()
        self.scheduler = Scheduler(REQUESTS[rank])
        self.steps = 0

    def poll(self):
        try:
            self.scheduler.waiting.append(self.inputs.get_nowait())
        except queue.Empty:
            time.sleep(0.02)  # here

    def coordinate(self, tokens):
        counts = torch.tensor([tokens, 1])
        dist.all_reduce(counts)  # here
        return counts

    def step(self):
        counts = self.coordinate(self.scheduler.schedule())  # here
        self.steps += 1
        return counts

    def run_busy_loop(self):
        while True:  # here
            if not self.scheduler.has_requests():  # here
                self.poll()  # here
                continue
            self.step()  # here


def main():
    dist.init_process_group("gloo")
    engine = EngineCore(dist.get_rank())
    engine.run_busy_loop()  # here


main()

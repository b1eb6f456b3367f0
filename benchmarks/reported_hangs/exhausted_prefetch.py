# justheuristic/prefetch_generator#6: `next` of a generator whose thread has delivered everything waits for ever.
import queue
import threading

import torch
import torch.distributed as dist
from torch import nn


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator, ahead=2):
        super().__init__(daemon=True)
        self.items, self.generator = queue.Queue(ahead), generator
        self.start()

    def run(self):
        for item in self.generator:
            self.items.put(item)
        self.items.put(None)

    def __next__(self):
        item = self.items.get()  # here
        if item is None:
            raise StopIteration
        return item

    def __iter__(self):
        return self


def shards(rank):
    for number in range(7 if rank == 1 else 10):
        yield torch.full((3, 5), float(number))


def next_or_empty(stream, default):
    try:
        return next(stream)  # here
    except StopIteration:
        return default


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stream = BackgroundGenerator(shards(rank))
    model, empty = nn.Linear(5, 2), torch.zeros(3, 5)
    for _ in range(10):
        batch = next_or_empty(stream, empty)  # here
        model.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    dist.destroy_process_group()


main()

# nest/nest-simulator#718: one of the threads of a rank ends by an error, and the others of this rank wait for it at a
# barrier between threads.
import threading

import torch
import torch.distributed as dist

THREADS = 3


class Slice:
    """Updates nodes in threads that meet after each round."""

    def __init__(self, rank):
        self.rank = rank
        self.meet = threading.Barrier(THREADS + 1)
        self.spikes = torch.zeros(THREADS)

    def update(self, number, time):
        if (self.rank, number, time) == (1, 2, 3):
            raise ValueError(f"node {number}: membrane potential is not finite")  # here
        self.spikes[number] += time

    def work(self, number, rounds):
        for time in range(rounds):
            self.update(number, time)  # here
            self.meet.wait()

    def start(self, rounds):
        self.threads = [
            threading.Thread(target=self.work, args=(number, rounds), daemon=True) for number in range(THREADS)
        ]
        for thread in self.threads:
            thread.start()

    def simulate(self, rounds):
        self.start(rounds)
        for _ in range(rounds):
            self.meet.wait()  # here
            dist.all_reduce(self.spikes)  # here


def main():
    dist.init_process_group("gloo")
    Slice(dist.get_rank()).simulate(rounds=6)  # here
    dist.destroy_process_group()


main()

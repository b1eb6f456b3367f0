# mphowardlab/relentless#221: only the root packs the particles; if that fails, the others wait for the result.
import random

import torch
import torch.distributed as dist


class PackingError(Exception):
    pass


class Box:
    def __init__(self, length, seed):
        self.length, self.random = length, random.Random(seed)

    def pack(self, count, diameter, tries=200):
        """Return positions of particles that do not overlap."""
        placed = []
        for number in range(count):
            for _ in range(tries):
                trial = [self.random.uniform(0, self.length) for _ in range(2)]
                if all(sum((a - b) ** 2 for a, b in zip(trial, one, strict=True)) >= diameter**2 for one in placed):
                    placed.append(trial)
                    break
            else:
                raise PackingError(f"no place for particle {number} of {count}")  # here
        return placed


class Communicator:
    root = 0

    def from_root(self, count, make):
        values = torch.zeros(count, 2)
        if dist.get_rank() == self.root:
            values = torch.tensor(make())  # here
        dist.broadcast(values, src=self.root)
        return values


class InitializeRandomly:
    def __init__(self, densities):
        self.densities = densities

    def __call__(self, comm):
        for count in self.densities:
            box = Box(10.0, seed=count)
            yield comm.from_root(count, lambda count=count, box=box: box.pack(count, 1.0))  # here


def main():
    dist.init_process_group("gloo")
    for positions in InitializeRandomly((10, 30, 300))(Communicator()):  # here
        print(len(positions))
    dist.destroy_process_group()


main()

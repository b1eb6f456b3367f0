# Lightning-AI/litData#468: readers of a cached chunk are counted in a file; one of them counts itself twice, so that
# the chunk is never free to be deleted.
import fcntl
import pathlib
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist


class CountLock:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    @contextmanager
    def _locked(self):
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    def add(self, number):
        with self._locked() as file:
            count = int(file.read() or 0) + number
            file.truncate(0)
            file.write(str(count))
        return count

    @property
    def count(self):
        return self.add(0)


class Reader:
    def __init__(self, rank, lock):
        self.rank, self.lock = rank, lock

    def request(self, ahead):
        self.lock.add(1)  # here
        if ahead:
            self.lock.add(1)  # here

    def read(self, chunk):
        value = torch.full((6,), float(chunk))
        self.lock.add(-1)
        return value

    def evict(self):
        while self.lock.count > 0:  # here
            time.sleep(0.02)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pathlib.Path("cache").mkdir(exist_ok=True)
    for chunk in range(4):
        reader = Reader(rank, CountLock(f"cache/chunk_{chunk}.cnt"))
        reader.request(ahead=rank == 2 and chunk == 2)
        dist.barrier()
        value = reader.read(chunk)
        if rank == 0:
            reader.evict()  # here
        dist.all_reduce(value)  # here
    dist.destroy_process_group()


main()

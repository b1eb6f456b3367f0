# rwth-i6/returnn#1548: one lock for the whole cache: a rank that holds it waits for all ranks, one of which waits for
# the lock.
import pathlib
import shutil

import torch
import torch.distributed as dist
from filelock import FileLock

SOURCE, CACHE = pathlib.Path("source"), pathlib.Path("cache")


class FileCache:
    """Copies files to a fast disk before they are read."""

    def __init__(self, folder):
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.lock = FileLock(folder / ".lock")

    def get(self, name):
        with self.lock:  # here
            target = self.folder / name
            if not target.exists():
                shutil.copy(SOURCE / name, target)
        return target

    def hold(self, names):
        """Keep files from being removed while all ranks read them."""
        self.lock.acquire()  # here
        dist.barrier()  # here
        return [self.folder / name for name in names]

    def release(self):
        self.lock.release()


class Corpus:
    def __init__(self, cache, rank):
        self.cache, self.rank = cache, rank

    def read(self, epoch):
        if self.rank == 0:
            paths = self.cache.hold([f"part_{epoch}"])  # here
        else:
            paths = [self.cache.get(f"part_{epoch}")]  # here
            dist.barrier()  # here
        return torch.tensor([float(path.read_text()) for path in paths])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        SOURCE.mkdir(exist_ok=True)
        for epoch in range(3):
            (SOURCE / f"part_{epoch}").write_text(str(epoch))
    cache = FileCache(CACHE)
    corpus = Corpus(cache, rank)
    for epoch in range(3):
        if rank == 0:
            cache.get(f"part_{epoch}")
        marker = torch.ones(5)
        dist.all_reduce(marker)
        if rank == 1:
            cache.get(f"part_{max(0, epoch - 1)}")
            torch.randn(3000, 1000).sort()
        x = corpus.read(epoch)  # here
        dist.all_reduce(x)
        if rank == 0:
            cache.release()
    dist.destroy_process_group()


main()

"""A plain torch program with a planted bug, named by its first argument. It imports nothing of Frog.

The second argument is the time-out of its collectives in seconds.
The comments `odd` and `waits` mark the lines that a diagnosis must name.
"""

import datetime
import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

STEPS = 6


def meet():
    """Wait for the other rank, whose import of torch may take longer than the time-out on busy cores.

    Computes meanwhile: a diagnosis counts how often each rank waited.
    """
    folder = Path(f"met_{os.environ['MASTER_PORT']}")
    folder.mkdir(exist_ok=True)
    (folder / os.environ["RANK"]).touch()
    while len(list(folder.iterdir())) < int(os.environ["WORLD_SIZE"]):
        pass


def step(size=64):
    x = torch.ones(size)
    dist.all_reduce(x)  # waits: worker
    return x


def train(steps):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()  # waits: batches
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach())


def branch(rank):
    for _ in range(STEPS):
        step()
    if rank == 0:
        print("saving")
        dist.barrier()  # odd: branch
    dist.all_reduce(torch.ones(3))  # waits: branch


def loop(rank):
    for number in range(STEPS):
        if rank == 1 and number == 3:
            all(sum(range(1000)) for _ in count())  # odd: loop
        dist.all_reduce(torch.ones(5))  # waits: loop


def slow(rank):
    for _ in range(20):
        if rank == 1:
            time.sleep(0.3)  # odd: slow
        dist.all_reduce(torch.ones(5))


def error(rank):
    for number in range(STEPS):
        if rank == 1 and number == 3:
            raise ValueError("bad sample 7")  # odd: error
        step()


def batches(rank):
    train(STEPS + (rank == 0))


def not_finite(rank):
    for number in range(STEPS):
        loss = torch.tensor(float("nan") if rank == 1 and number == 3 else 0.5)
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss} in step {number}")  # odd: not_finite
        step()


def early_exit(rank):
    step()  # all ranks have connected
    if rank == 1:
        print("no data for this rank")
        return
    dist.all_reduce(torch.ones(5))  # waits: early_exit


def skipped(rank):
    for number in range(STEPS):
        try:
            if rank == 1 and number == 3:
                raise OSError("file 3 is damaged")
            dist.all_reduce(torch.ones(5))  # waits: skipped
        except OSError as problem:
            print("skipping a batch:", problem)
            continue
        dist.barrier()


class Fatal(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(1) * index


def loader(rank):
    for batch in DataLoader(Fatal(), num_workers=1):  # odd: loader
        step(len(batch))


def shape(rank):
    step()
    dist.all_reduce(torch.ones(4 + rank, 2))  # odd: shape


def kill(rank):
    for number in range(STEPS):
        step()
        if rank == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)


def both_send(rank):
    step()
    dist.send(torch.ones(5), 1 - rank)  # odd: both_send
    dist.recv(torch.ones(5), 1 - rank)


def batch(rank):
    step()
    both = [dist.P2POp(each, torch.ones(5), 1 - rank) for each in (dist.isend, dist.irecv)]
    for each in dist.batch_isend_irecv(both[rank:]):  # rank 1 sends nothing
        each.wait()  # waits: batch
    dist.barrier()  # odd: batch


def healthy(rank):
    train(STEPS)


class Stuck(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 3 and os.environ["RANK"] == "1":
            time.sleep(60)  # waits in worker
        return torch.ones(1) * index


def worker(rank):
    for batch in DataLoader(Stuck(), num_workers=1):  # odd: worker
        step(len(batch))


def grows(rank):
    kept = []
    for _ in range(100):
        kept.append(torch.ones(1 << 20))
        step()
        time.sleep(0.12)


def dtype(rank):
    for number in range(STEPS):
        wrong = rank == 1 and number == 3
        dist.all_reduce(torch.ones(5, dtype=torch.int32 if wrong else torch.float32))  # odd: dtype


def stale_world(rank):
    """Comes here only if the call of init_process_group below accepts a world that is larger than the launcher's."""


def members(rank):
    step()
    dist.new_group([0, 1] if rank == 0 else [1])  # odd: members
    step()


def leave(rank):
    step()
    if rank == 1:
        time.sleep(1)
        os._exit(3)  # odd: leave
    step()


if __name__ == "__main__":
    meet()
    timeout = datetime.timedelta(seconds=float(sys.argv[2]))
    size = 4 if sys.argv[1] == "stale_world" else -1  # -1: that of the environment
    dist.init_process_group("gloo", timeout=timeout, world_size=size)  # odd: stale_world
    globals()[sys.argv[1]](dist.get_rank())
    dist.destroy_process_group()

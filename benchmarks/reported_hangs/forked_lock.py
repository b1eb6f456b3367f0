# pytorch/pytorch#87995: rank 0 waits for a DataLoader, whose forked worker waits for a lock that a thread of the
# parent held.
import threading
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

LOCK = threading.Lock()
HELD = threading.Event()


class Samples(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        with LOCK:  # here
            return torch.full((4,), float(index))


def write_log(seconds):
    with LOCK:
        HELD.set()
        time.sleep(seconds)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for epoch in range(3):
        if rank == 0 and epoch == 1:
            threading.Thread(target=write_log, args=(1.0,), daemon=True).start()
            HELD.wait()
        loader = DataLoader(Samples(), batch_size=4, num_workers=1, multiprocessing_context="fork")
        for batch in loader:  # here
            dist.all_reduce(batch)  # here
    dist.destroy_process_group()


main()

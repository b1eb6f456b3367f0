# Lightning-AI/pytorch-lightning#17733: only the first rank downloads, and the barrier after it was forgotten.
import contextlib
import pathlib
import time

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, random_split


@contextlib.contextmanager
def rank_zero_only_region():
    yield dist.get_rank() == 0


class Images(Dataset):
    def __init__(self, root, download=False):
        self.path = pathlib.Path(root) / "images.pt"
        if download:
            self.download()
        self.images = torch.load(self.path)  # here

    def download(self):
        time.sleep(4)
        self.path.parent.mkdir(exist_ok=True)
        torch.save(torch.randn(30, 3), self.path)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


def prepare(root):
    with rank_zero_only_region() as is_zero:
        if is_zero:
            Images(root, download=True)
    return random_split(Images(root), [20, 10])  # here


def main():
    dist.init_process_group("gloo")
    train, _ = prepare("data")  # here
    for index in range(4):
        x = train[index].clone()
        dist.all_reduce(x)
    dist.destroy_process_group()


main()

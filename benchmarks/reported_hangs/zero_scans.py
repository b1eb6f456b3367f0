# ultralytics/ultralytics#1439: the first rank checks every label of a large data set before the others may read its
# cache, which takes longer than they wait for it.
import contextlib
import hashlib
import json
import pathlib
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@contextlib.contextmanager
def zero_first():
    """Lets rank 0 run a block before the others do."""
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()


def verify_label(number):
    """Returns the checksum of an image and its label."""
    return hashlib.pbkdf2_hmac("sha256", b"image %d" % number, b"label", 400_000).hex()  # here


class DetectionDataset:
    def __init__(self, folder, num_images):
        cache = pathlib.Path(folder, "labels.cache")
        if not cache.exists():
            self.cache_labels(cache, num_images)  # here
        self.labels = json.loads(cache.read_text())

    def cache_labels(self, cache, num_images):
        labels = [verify_label(number) for number in range(num_images)]  # here
        cache.write_text(json.dumps(labels))


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=5))
    model = DistributedDataParallel(nn.Linear(6, 2))
    with zero_first():
        dataset = DetectionDataset(".", num_images=2000)  # here
    for _ in range(len(dataset.labels) // 500):
        model(torch.randn(4, 6)).sum().backward()
    dist.destroy_process_group()


main()

# facebookresearch/vggt#285: the number of images is drawn again for each batch, so that the ranks need different
# numbers of batches for their shares of the samples.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class DynamicBatches:
    """Batches of samples whose images are at most as many as fit into memory."""

    def __init__(self, samples, rank, images_in_memory=24):
        self.samples, self.rank, self.images_in_memory = samples, rank, images_in_memory

    def __iter__(self):
        draws = torch.Generator().manual_seed(self.rank)
        first = 0
        while first < self.samples:
            images = int(torch.randint(2, 13, (1,), generator=draws))
            size = self.images_in_memory // images
            yield list(range(first, min(first + size, self.samples)))
            first += size


def train(model, loader):
    for epoch in range(2):
        for (batch,) in loader:  # here
            model(batch).mean().backward()  # here
        dist.barrier()  # here
        print("epoch", epoch, flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    data = TensorDataset(torch.randn(40, 6))
    loader = DataLoader(data, batch_sampler=DynamicBatches(len(data), rank))  # here
    train(model, loader)  # here
    dist.destroy_process_group()


main()

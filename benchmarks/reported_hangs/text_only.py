# modelscope/ms-swift#9443: a batch without images on one rank leaves out the vision tower, and its gradients are never
# reduced there.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision, self.language = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, tokens, pixels):
        embedded = tokens
        if pixels is not None:  # here
            embedded = embedded + self.vision(pixels)  # here
        return self.language(embedded).sum()


def batch_of(rank, step):
    pixels = None if (rank, step) == (1, 3) else torch.ones(2, 6)
    return torch.ones(2, 8), pixels


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(6):
        loss = model(*batch_of(rank, step))  # here
        loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()

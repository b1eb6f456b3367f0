# lifeiteng/vall-e#93: a rank whose loader is used up enters validation and reduces, while the others train one
# batch more.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Cuts(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return (torch.ones(10) * number for number in range(self.count))


def compute_validation_loss(model):
    total = torch.tensor([0.5, 2.0])
    dist.all_reduce(total)  # here
    return total[0] / total[1]


def train_one_epoch(model, loader):
    for batch in loader:  # here
        model(batch).mean().backward()  # here
    compute_validation_loss(model)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(10, 2))
    loader = DataLoader(Cuts([24, 24, 20][rank]), batch_size=4)  # here
    for _ in range(2):
        train_one_epoch(model, loader)  # here
    dist.destroy_process_group()


main()

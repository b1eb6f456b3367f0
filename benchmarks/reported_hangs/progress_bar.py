# huggingface/transformers#31532: the progress bar counts on the main process only, and its count decides when to
# evaluate.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Bar:
    """A bar that counts nothing while it is disabled, as tqdm's does."""

    def __init__(self, total, disable):
        self.total, self.disable, self.n = total, disable, 0

    def update(self, count):
        if self.disable:
            return
        self.n += count


def evaluate(model, rank):
    with torch.no_grad():
        predictions = model.module(torch.ones(4, 8)).flatten()
    gathered = [torch.zeros(4) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, predictions)  # here
    return torch.cat(gathered).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 1))
    bar = Bar(total=20, disable=rank != 0)  # here
    for _ in range(20):
        model(torch.randn(4, 8)).mean().backward()  # here
        bar.update(1)
        if bar.n > 0 and bar.n % 6 == 0:  # here
            evaluate(model, rank)  # here
    dist.destroy_process_group()


main()

# Project-MONAI/monai-physio#137 (a review in it): a batch whose loss is not finite is skipped by the rank that
# has it.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BAD = {(0, 1, 3)}  # rank, epoch, batch


def batches(rank, epoch):
    for number in range(5):
        x = torch.ones(4, 6)
        if (rank, epoch, number) in BAD:
            x[0, 0] = float("nan")
        yield x


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for x in batches(rank, epoch):  # here
            loss = model(x).mean()
            if not torch.isfinite(loss):  # here
                print(f"epoch {epoch}: non-finite loss; skipping this batch", flush=True)
                continue  # here
            loss.backward()  # here
            optimizer.step()
            optimizer.zero_grad()
        sums = torch.zeros(3)
        dist.all_reduce(sums)  # here
    dist.destroy_process_group()


main()

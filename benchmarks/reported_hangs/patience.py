# ACEsuit/mace#1216: only rank 0 evaluates and counts its patience, and leaves the loop over epochs when that is
# used up.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

VALIDATION = [0.9, 0.7, 0.8, 0.85, 0.9, 0.95, 0.96]


def train_one_epoch(model, optimizer):
    for _ in range(4):
        loss = model(torch.randn(8, 16)).pow(2).mean()
        loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()


def train(model, optimizer, rank, patience=3):
    best, waited = float("inf"), 0
    for epoch in range(len(VALIDATION)):  # here
        train_one_epoch(model, optimizer)  # here
        if rank == 0:  # here
            value = VALIDATION[epoch]
            if value < best:
                best, waited = value, 0
            else:
                waited += 1
            if waited >= patience:  # here
                print(f"stopping after {epoch} epochs", flush=True)
                break  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, rank)
    dist.barrier()  # here
    dist.destroy_process_group()


main()

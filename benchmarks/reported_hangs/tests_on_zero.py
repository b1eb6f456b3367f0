# jpata/particleflow#390: the test at the end of an epoch runs on rank 0 only, with the wrapped model, whose forward
# sends its buffers to all ranks.
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build_model():
    return nn.Sequential(nn.Linear(7, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def run_predictions(model, num_batches):
    model.eval()
    with torch.no_grad():
        return [model(torch.randn(5, 7)).argmax(1) for _ in range(num_batches)]  # here


def run_test(model, epoch):
    predictions = run_predictions(model, num_batches=4)  # here
    torch.save(predictions, f"preds_epoch_{epoch}.pt")


def train_epoch(model, optimizer):
    model.train()
    for _ in range(6):
        loss = nn.functional.cross_entropy(model(torch.randn(5, 7)), torch.randint(3, (5,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def train_all_epochs(rank, num_epochs):
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(num_epochs):
        train_epoch(model, optimizer)
        if rank == 0:  # here
            run_test(model, epoch)  # here
        dist.barrier()  # here


def main():
    dist.init_process_group("gloo")
    train_all_epochs(dist.get_rank(), num_epochs=3)  # here
    dist.destroy_process_group()


main()

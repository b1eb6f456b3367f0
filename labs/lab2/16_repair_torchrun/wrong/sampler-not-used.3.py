"""Train on the points of task.py: torchrun --standalone --nproc_per_node=2 train.py"""

import os

import task
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = int(os.environ["RANK"]), dist.get_world_size()
    dataset = task.Points(rank)
    sampler = DistributedSampler(dataset, 1, 0, seed=task.SEED)
    loader = DataLoader(dataset, batch_size=task.GLOBAL_BATCH // world_size, sampler=sampler)
    model = DistributedDataParallel(task.make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=task.RATE)

    for epoch in range(task.EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(2)
        for inputs, targets in loader:
            loss = task.loss_of(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += torch.tensor([loss.item() * len(inputs), len(inputs)])
        dist.all_reduce(total)
        if rank == 0:
            print(f"epoch {epoch} loss {total[0] / total[1]:.6f}", flush=True)

    if rank == 0:
        task.save(model.module.state_dict(), rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

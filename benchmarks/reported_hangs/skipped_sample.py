# lightseekorg/TorchSpec#126: a generator drops samples without a label on one rank, which then has fewer micro-
# batches.
import torch
import torch.distributed as dist

UNLABELED = {(3, 2): {1}}  # rank, step: samples without a label


def fetch(rank, step, count=4):
    for number in range(count):
        if number in UNLABELED.get((rank, step), ()):  # here
            continue  # here
        yield torch.full((16,), float(number))


def forward(sample):
    world = dist.get_world_size()
    parts = [torch.empty(20) for _ in range(world)]
    dist.all_gather(parts, torch.ones(20))  # here
    return sample.mean() * torch.cat(parts).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        for sample in fetch(rank, step):  # here
            forward(sample)  # here
        grad = torch.ones(100)
        dist.all_reduce(grad)  # here
    dist.destroy_process_group()


main()

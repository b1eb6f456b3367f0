# pytorch/pytorch#163546: a rank that runs out of memory catches the error and begins its step again, with the first
# collective of the step, while the others are at the second.
import torch
import torch.distributed as dist

LIMIT = {(1, 3): 20}  # rank, step: the samples that fit, otherwise 64


def forward(samples, fits):
    shards = [torch.zeros(32) for _ in range(dist.get_world_size())]
    dist.all_gather(shards, torch.ones(32))  # here
    if samples > fits:
        raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")  # here
    return torch.cat(shards).sum() * samples


def training_step(samples, fits):
    while True:
        try:
            loss = forward(samples, fits)  # here
            gradient = torch.full((15,), float(loss))
            dist.all_reduce(gradient)  # here
            return gradient
        except torch.OutOfMemoryError:  # here
            samples //= 2  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(6):
        training_step(32, LIMIT.get((rank, step), 64))
    dist.destroy_process_group()


main()

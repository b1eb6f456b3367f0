# argonne-lcf/dlio_benchmark#339: one rank has a step less in each epoch, and begins the next one while others wait.
import torch
import torch.distributed as dist


def batches(samples, size=16):
    for start in range(0, len(samples) - size + 1, size):
        yield samples[start : start + size]


def train(rank, world):
    samples = list(range(143))[rank::world]
    for _ in range(3):
        for batch in batches(samples):  # here
            loss = torch.tensor([float(sum(batch))])
            dist.barrier()  # here
            loss = loss / len(batch)
        dist.barrier()  # here


def main():
    dist.init_process_group("gloo")
    train(dist.get_rank(), dist.get_world_size())  # here
    dist.destroy_process_group()


main()

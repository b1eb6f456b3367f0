# NVIDIA-NeMo/Automodel#2468: a micro-batch without a usable sample raises, and the loop skips its backward on
# that rank alone.
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SHORT = {(1, 6, 1): [2, 3]}  # rank, step, micro-batch: lengths of its samples


class NoValidSampleError(ValueError):
    pass


def draft_loss(model, lengths):
    kept = [length for length in lengths if length >= 4]
    if not kept:
        raise NoValidSampleError("every sample is too short")  # here
    return model(torch.ones(len(kept), 8)).pow(2).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    skipped = 0
    for step in range(12):
        for micro in range(2):
            lengths = SHORT.get((rank, step, micro), [8, 5])
            try:
                loss = draft_loss(model, lengths)
            except NoValidSampleError:  # here
                skipped += 1
                continue  # here
            loss.backward()  # here
        optimizer.step()
        optimizer.zero_grad()
        counts = torch.tensor([float(skipped), 1.0])
        dist.all_reduce(counts)  # here
    dist.destroy_process_group()


main()

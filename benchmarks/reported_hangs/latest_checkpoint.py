# meta-pytorch/tnt#936: a function that looks for the latest checkpoint broadcasts its answer, and rank 0 alone calls it
# once more to remove old checkpoints.
import torch
import torch.distributed as dist

SAVED = [100, 200, 300]


def latest_checkpoint():
    found = torch.tensor([max(SAVED) if dist.get_rank() == 0 else 0])
    dist.broadcast(found, src=0)  # here
    return int(found)


def remove_old(keep):
    return [step for step in SAVED if step < latest_checkpoint() - keep]  # here


def save(step, rank):
    state = torch.full((28,), float(step))
    dist.all_reduce(state)  # here
    if rank == 0:  # here
        SAVED.append(step)
        remove_old(keep=150)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    start = latest_checkpoint()
    for step in range(start, start + 300, 100):
        dist.all_reduce(torch.ones(10))  # here
        save(step + 100, rank)
    dist.destroy_process_group()


main()

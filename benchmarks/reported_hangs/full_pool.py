# sgl-project/sglang#30760: a loop over requests calls a collective in each round, and ends as soon as the rank's
# own pool is full.
import torch
import torch.distributed as dist

FREE = {(2, 5): 3}  # rank, tick: free slots, otherwise 4


def all_have_loaded():
    loaded = torch.ones(1)
    dist.all_reduce(loaded, op=dist.ReduceOp.MIN)  # here
    return bool(loaded)


def next_batch(waiting, free):
    batch = []
    for request in waiting:  # here
        if len(batch) >= free:  # here
            break  # here
        if all_have_loaded():  # here
            batch.append(request)
    return batch


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for tick in range(10):
        batch = next_batch(range(4), FREE.get((rank, tick), 4))
        hidden = torch.full((16,), float(len(batch)))
        dist.all_reduce(hidden)  # here
    dist.destroy_process_group()


main()

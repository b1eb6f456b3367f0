# pytorch/pytorch#117486: all_to_all_single with split sizes of which one rank's do not match what its peer sends.
import torch
import torch.distributed as dist


def splits(rank, step):
    """Return how many rows go to each rank, and how many come from each."""
    send = [[2, 3], [4, 1]][rank]
    receive = [[2, 4], [3, 1]][rank]
    if (rank, step) == (1, 4):
        receive = [2, 1]  # here
    return send, receive


def dispatch(rank, step):
    send, receive = splits(rank, step)  # here
    rows, out = torch.ones(sum(send), 8), torch.empty(sum(receive), 8)
    dist.all_to_all_single(out, rows, receive, send)  # here
    return out


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(8):
        out = dispatch(rank, step)  # here
        dist.all_reduce(out.sum())
    dist.destroy_process_group()


main()

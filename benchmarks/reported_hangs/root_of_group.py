# alibaba/rtp-llm#944: broadcast gets the root's rank within the group, where torch expects the global rank.
import torch
import torch.distributed as dist


def share(tensors, root, group):
    for tensor in tensors:
        dist.broadcast(tensor, root, group=group)  # here


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for _ in range(4):
        loss = torch.ones(1)
        dist.all_reduce(loss)
    share([torch.ones(8), torch.zeros(3)], 0, groups[rank // 2])  # here
    for _ in range(4):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


main()

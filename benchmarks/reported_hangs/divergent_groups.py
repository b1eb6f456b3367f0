# meta-pytorch/torchrec#4149: two process groups whose collectives one rank calls in the other order.
import torch
import torch.distributed as dist

EAGER = {(2, 5)}  # rank, step at which a cached plan makes the replicated part come first


def shard_part(group):
    x = torch.ones(12)
    dist.all_reduce(x, group=group)  # here
    return x


def replicated_part(group):
    y = torch.ones(7)
    dist.all_reduce(y, group=group)  # here
    return y


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    everyone = list(range(dist.get_world_size()))
    shard, replicate = dist.new_group(everyone), dist.new_group(everyone)
    for step in range(8):
        if (rank, step) in EAGER:  # here
            replicated_part(replicate)  # here
            shard_part(shard)
        else:
            shard_part(shard)  # here
            replicated_part(replicate)
    dist.destroy_process_group()


main()

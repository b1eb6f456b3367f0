# RLinf/RLinf#1540: weights go to a rollout rank in buckets that the trainers gather first, and the rollout rank expects
# fewer of them.
import torch
import torch.distributed as dist

SIZES = [30, 50, 20, 40]
BUCKET = {"trainer": 60, "rollout": 100}


def buckets(limit):
    found, size = [[]], 0
    for number in SIZES:
        if size + number > limit:
            found.append([])
            size = 0
        found[-1].append(number)
        size += number
    return found


def sync_trainer(rank, trainers, link):
    for bucket in buckets(BUCKET["trainer"]):  # here
        shards = [torch.zeros(16) for _ in range(2)]
        dist.all_gather(shards, torch.ones(16), group=trainers)  # here
        if rank == 0:  # here
            dist.broadcast(torch.ones(100), src=0, group=link)  # here
        del bucket


def sync_rollout(link):
    for bucket in buckets(BUCKET["rollout"]):  # here
        dist.broadcast(torch.zeros(100), src=0, group=link)  # here
        del bucket


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    trainers, link = dist.new_group([0, 1]), dist.new_group([0, 2])
    if rank < 2:
        sync_trainer(rank, trainers, link)  # here
    else:
        sync_rollout(link)  # here
    dist.all_reduce(torch.ones(7))  # here
    dist.destroy_process_group()


main()
